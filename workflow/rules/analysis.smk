# Contract: the records of an experiment's runs become tables and an answer, and decide which runs are needed next.
# in:  results/{experiment}/runs/{run}/record.json; of an experiment that compares partitions, those of each of them
# out: results/{experiment}/ runs.csv, epochs.csv, scaling.csv, options.csv, answer.json, provenance.json;
#      repeats/round{round}.json of an experiment whose next runs follow from earlier ones

TABLES = expand(
    "results/{{experiment}}/{name}",
    name=["runs.csv", "epochs.csv", "scaling.csv", "options.csv"]
    + ["answer.json", "provenance.json"],
)


checkpoint judge_round:
    input:
        rounds=lambda wc: expand(
            ROUND, experiment=wc.experiment, round=range(1, int(wc.round))
        ),
        runs=lambda wc: records_of(wc.experiment, before=int(wc.round)),
    output:
        ROUND,
    log:
        "logs/judge_round/{experiment}.round{round}.log",
    localrule: True
    conda:
        "../envs/scalewise.yaml"
    params:
        definition=lambda wc: EXPERIMENTS[wc.experiment]["rounds"],
    shell:
        'python "$SCALEWISE_SCRIPTS/cli.py" judge '
        "--round {wildcards.round} "
        "results/{wildcards.experiment:q} 2>&1 | tee {log:q}"


rule analyze:
    input:
        rounds=lambda wc: rounds_of(*QUESTIONS[wc.experiment]),
        runs=lambda wc: records_of(*QUESTIONS[wc.experiment]),
    output:
        TABLES,
    log:
        "logs/analyze/{experiment}.log",
    # runs of an experiment on one of several partitions are analyzed with those on the others
    wildcard_constraints:
        experiment="|".join(QUESTIONS),
    localrule: True
    conda:
        "../envs/scalewise.yaml"
    params:
        definition=lambda wc: question_definition(PLAN, wc.experiment),
    shell:
        'python "$SCALEWISE_SCRIPTS/cli.py" analyze '
        "results/{wildcards.experiment:q} 2>&1 | tee {log:q}"
