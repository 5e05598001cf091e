# Contract: the main process turns `config` into STUDY and PLAN, or stops with every mistake in it.

from scalewise.config.errors import StudyError
from scalewise.plan.jobs.make_plan import make_plan
from scalewise.plan.jobs.open_study import (
    DEFAULT_CONFIG,
    check_handlers,
    exit_on_mistakes,
    open_study,
    reads_shipped_study,
)
from scalewise.plan.runs.rounds import judged_rounds, required_rounds
from scalewise.snakemake_adapter import Snakemake
from scalewise.watch.session import RuleNames, Session

SNAKEMAKE = Snakemake.reading(workflow)
with exit_on_mistakes():
    SHIPPED = reads_shipped_study(SNAKEMAKE, config)
if SHIPPED:

    configfile: DEFAULT_CONFIG


with exit_on_mistakes():
    STUDY = open_study(SNAKEMAKE, config, SCRIPTS.resolve().parents[1])
PLAN = make_plan(STUDY)
SESSION = Session(STUDY, PLAN, SNAKEMAKE)
