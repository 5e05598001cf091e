# Contract: the records of an experiment's runs become tables and an answer, and decide which runs are needed next.
# in:  results/{experiment}/runs/{run}/record.json
# out: results/{experiment}/ runs.csv, epochs.csv, scaling.csv, options.csv, answer.json, provenance.json;
#      repeats/{part}round{round}.json of an experiment whose next runs follow from earlier ones

TABLES = expand(
    "results/{{experiment}}/{name}",
    name=["runs.csv", "epochs.csv", "scaling.csv", "options.csv"]
    + ["answer.json", "provenance.json"],
)


checkpoint judge_round:
    input:
        rounds=lambda wc: expand(ROUND, **{**wc, "round": range(1, int(wc.round))}),
        runs=lambda wc: records_of(wc.experiment, wc.part, before=int(wc.round)),
    output:
        ROUND,
    log:
        "logs/judge_round/{experiment}.{part}round{round}.log",
    localrule: True
    conda:
        "../envs/scalewise.yaml"
    params:
        definition=lambda wc: EXPERIMENTS[wc.experiment]["definitions"][part_of(wc)],
        part=part_of,
    shell:
        'python "$SCALEWISE_SCRIPTS/cli.py" judge '
        "--part={params.part:q} --round {wildcards.round} "
        "results/{wildcards.experiment:q} 2>&1 | tee {log:q}"


rule analyze:
    input:
        rounds=lambda wc: rounds_of(wc.experiment),
        runs=lambda wc: records_of(wc.experiment),
    output:
        TABLES,
    log:
        "logs/analyze/{experiment}.log",
    localrule: True
    conda:
        "../envs/scalewise.yaml"
    params:
        definition=lambda wc: list(EXPERIMENTS[wc.experiment]["definitions"].values()),
    shell:
        'python "$SCALEWISE_SCRIPTS/cli.py" analyze '
        "results/{wildcards.experiment:q} 2>&1 | tee {log:q}"
