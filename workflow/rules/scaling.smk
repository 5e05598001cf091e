# Contract: what the runs of an experiment say together.
# in:  the records of its runs
# out: results/{experiment}/ runs.csv, epochs.csv, scaling.csv, options.csv, decision.json, provenance.json


localrules:
    compute_scaling,


rule compute_scaling:
    input:
        lambda wc: expand(
            "results/{experiment}/runs/{run}/summary.json",
            experiment=wc.experiment,
            run=RUN_NAMES[wc.experiment],
        ),
    output:
        runs="results/{experiment}/runs.csv",
        epochs="results/{experiment}/epochs.csv",
        scaling=report(
            "results/{experiment}/scaling.csv",
            caption="../report/scaling.rst",
            category="{experiment}",
            labels={"table": "scaling"},
        ),
        options="results/{experiment}/options.csv",
        decision="results/{experiment}/decision.json",
        provenance="results/{experiment}/provenance.json",
    log:
        "logs/compute_scaling/{experiment}.log",
    conda:
        "../envs/scalewise.yaml"
    params:
        definition=lambda wc: DEFINITIONS[wc.experiment],
    shell:
        'python "$SCALEWISE_SCRIPTS/compute_scaling.py" '
        "--experiment {params.definition:q} "
        "results/{wildcards.experiment:q} 2>&1 | tee {log:q}"
