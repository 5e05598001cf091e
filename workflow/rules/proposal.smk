# Contract: the answer of an experiment becomes a computing-time proposal, if the experiment names a centre.
# in:  what ExperimentResults reads; the template of the centre
# out: results/{experiment}/proposal/: proposal.md, table.csv, job.sh

import json

from scalewise.plan.catalog.centres import template_of

PROPOSED = {
    name: json.loads(facts["proposal"])
    for name, facts in EXPERIMENTS.items()
    if facts["proposal"]
}

if PROPOSED:

    rule proposal:
        input:
            EXPERIMENT_RESULTS,
            template=lambda wc: template_of(PROPOSED[wc.experiment]["centre"]),
        output:
            multiext(
                "results/{experiment}/proposal/", "proposal.md", "table.csv", "job.sh"
            ),
        log:
            "logs/proposal/{experiment}.log",
        wildcard_constraints:
            experiment="|".join(PROPOSED),
        localrule: True
        conda:
            "../envs/scalewise.yaml"
        params:
            definition=lambda wc: EXPERIMENTS[wc.experiment]["definition"],
            proposal=lambda wc: EXPERIMENTS[wc.experiment]["proposal"],
            job_script=lambda wc: EXPERIMENTS[wc.experiment]["job_script"],
        shell:
            'python "$SCALEWISE_SCRIPTS/cli.py" proposal '
            "results/{wildcards.experiment:q} 2>&1 | tee {log:q}"
