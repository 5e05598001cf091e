# Contract: the tables of an experiment on each of its partitions become one answer: which partition to use.
# in:  results/{comparison}@{partition}/*.csv and *.json of the analysis
# out: results/{comparison}/partitions.csv, partitions.json, results/{comparison}/figures/*.svg and *.pdf


rule compare_partitions:
    input:
        lambda wc: expand(
            [*EXPERIMENT_RESULTS, "results/{experiment}/fingerprints.json"],
            experiment=COMPARISONS[wc.comparison]["experiments"].values(),
        ),
    output:
        table=report(
            "results/{comparison}/partitions.csv",
            caption="../report/partitions.rst",
            category="{comparison}",
            labels={"table": "partitions"},
        ),
        answer="results/{comparison}/partitions.json",
        figures=report(
            directory("results/{comparison}/figures"),
            patterns=["{name}.svg"],
            caption="../report/figure.rst",
            category="{comparison}",
            labels={"figure": "{name}"},
        ),
    log:
        "logs/compare_partitions/{comparison}.log",
    # without any, no file is made by this rule
    wildcard_constraints:
        comparison="|".join(COMPARISONS) or "(?!)",
    localrule: True
    conda:
        "../envs/scalewise.yaml"
    params:
        definition=lambda wc: COMPARISONS[wc.comparison]["definition"],
    shell:
        'python "$SCALEWISE_SCRIPTS/cli.py" compare-partitions '
        "results/{wildcards.comparison:q} 2>&1 | tee {log:q}"
