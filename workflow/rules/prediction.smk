# Contract: what every device count should give, before any large job: from one device's computing and from the
# all-reduce over at most four nodes, which is measured once for each shape of a site. Once the study has run,
# what more nodes should give, from its own steps on a few.
# in:  the 1-device runs; for the projection runs.csv and all runs
# out: resources/collectives/{site}/{shape}.json, results/{experiment}/prediction.csv, prediction.json,
#      projection.csv, projection.json


localrules:
    compute_prediction,
    compute_projection,
    predict,


rule measure_all_reduce:
    output:
        "resources/collectives/{site}/{shape}.json",
    log:
        "logs/measure_all_reduce/{site}/{shape}.log",
    wildcard_constraints:
        site="[A-Za-z0-9_-]+",
        shape="[0-9]+x[0-9]+",
    # before the trainings
    priority: PRIORITY
    conda:
        "../envs/scalewise.yaml"
    # one machine: all cores, so that no training is beside it
    threads: ALL_REDUCES.threads(STUDY.site)
    resources:
        **ALL_REDUCES.resources(STUDY.site),
    shell:
        'python "$SCALEWISE_SCRIPTS/measure_all_reduce.py" --shape {wildcards.shape:q} --log {log:q} '
        "--limit-seconds {resources.limit_seconds} --timeout-seconds {resources.timeout_seconds} "
        "{output:q}"


rule compute_prediction:
    input:
        lambda wc: expand(
            "results/{experiment}/runs/{run}/summary.json",
            experiment=wc.experiment,
            run=STUDY.experiments[wc.experiment].prediction_runs,
        ),
        all_reduces=lambda wc: ALL_REDUCES.files(wc.experiment),
    output:
        table="results/{experiment}/prediction.csv",
        notes="results/{experiment}/prediction.json",
    log:
        "logs/compute_prediction/{experiment}.log",
    conda:
        "../envs/scalewise.yaml"
    params:
        definition=lambda wc: PREDICTED[wc.experiment],
    shell:
        'python "$SCALEWISE_SCRIPTS/analysis.py" prediction '
        "--experiment {params.definition:q} results/{wildcards.experiment:q} "
        "--all-reduces {input.all_reduces:q} 2>&1 | tee {log:q}"


rule compute_projection:
    input:
        "results/{experiment}/prediction.csv",
        # there when every run that is asked for has ended
        "results/{experiment}/runs.csv",
        all_reduces=lambda wc: ALL_REDUCES.files(wc.experiment),
    output:
        table="results/{experiment}/projection.csv",
        notes="results/{experiment}/projection.json",
    log:
        "logs/compute_projection/{experiment}.log",
    conda:
        "../envs/scalewise.yaml"
    params:
        definition=lambda wc: PREDICTED[wc.experiment],
    shell:
        'python "$SCALEWISE_SCRIPTS/analysis.py" prediction --from-steps '
        "--experiment {params.definition:q} results/{wildcards.experiment:q} "
        "--all-reduces {input.all_reduces:q} 2>&1 | tee {log:q}"


rule predict:
    input:
        expand("results/{experiment}/prediction.csv", experiment=list(PREDICTED)),
    log:
        "logs/predict.log",
    conda:
        "../envs/scalewise.yaml"
    shell:
        "echo 'Predicted: results/*/prediction.csv' | tee {log:q}"
