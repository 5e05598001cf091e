# Contract: what every device count should give, before any large job: from one device's computing and from the
# all-reduce over at most four nodes, which is measured once for each shape of a site. Once the study has run,
# what more nodes should give, from its own steps on a few.
# in:  the 1-device runs; for the projection runs.csv and all runs
# out: resources/collectives/{site}/{shape}.json, results/{experiment}/prediction.csv, prediction.json,
#      projection.csv, projection.json


ALL_REDUCES = requested(PLAN["all_reduces"], lambda wc: wc.shape)


rule measure_all_reduce:
    output:
        "resources/collectives/{site}/{shape}.json",
    log:
        "logs/measure_all_reduce/{site}/{shape}.log",
    wildcard_constraints:
        site="[A-Za-z0-9_-]+",
        shape="[0-9]+x[0-9]+",
    # before the trainings: the prediction is there before the large jobs run
    priority: 2_000_000_000
    conda:
        "../envs/scalewise.yaml"
    # one machine: all cores, so that no training is beside it
    threads: ALL_REDUCES["threads"]
    resources:
        **ALL_REDUCES["resources"],
    shell:
        'python "$SCALEWISE_SCRIPTS/cli.py" all-reduce --shape {wildcards.shape:q} --log {log:q} '
        "--output {output:q}"


rule compute_prediction:
    input:
        lambda wc: expand(
            "results/{experiment}/runs/{run}/summary.json",
            experiment=wc.experiment,
            run=STUDY.experiments[wc.experiment].prediction_runs,
        ),
        all_reduces=lambda wc: EXPERIMENTS[wc.experiment]["all_reduces"],
    output:
        table="results/{experiment}/prediction.csv",
        notes="results/{experiment}/prediction.json",
    log:
        "logs/compute_prediction/{experiment}.log",
    localrule: True
    conda:
        "../envs/scalewise.yaml"
    params:
        definition=lambda wc: EXPERIMENTS[wc.experiment]["prediction"],
    shell:
        'python "$SCALEWISE_SCRIPTS/cli.py" prediction '
        "results/{wildcards.experiment:q} "
        "--all-reduces {input.all_reduces:q} 2>&1 | tee {log:q}"


rule compute_projection:
    input:
        "results/{experiment}/prediction.csv",
        # there when every run that is asked for has ended
        "results/{experiment}/runs.csv",
        all_reduces=lambda wc: EXPERIMENTS[wc.experiment]["all_reduces"],
    output:
        table="results/{experiment}/projection.csv",
        notes="results/{experiment}/projection.json",
    log:
        "logs/compute_projection/{experiment}.log",
    localrule: True
    conda:
        "../envs/scalewise.yaml"
    params:
        definition=lambda wc: EXPERIMENTS[wc.experiment]["prediction"],
    shell:
        'python "$SCALEWISE_SCRIPTS/cli.py" prediction --from-steps '
        "results/{wildcards.experiment:q} "
        "--all-reduces {input.all_reduces:q} 2>&1 | tee {log:q}"


rule predict:
    input:
        expand("results/{experiment}/prediction.csv", experiment=PREDICTED),
    log:
        "logs/predict.log",
    localrule: True
    conda:
        "../envs/scalewise.yaml"
    shell:
        "echo 'Predicted: results/*/prediction.csv' | tee {log:q}"
