# Contract: the speed of every device count is predicted before any large job, from the computing of one device and
# from the all-reduce over at most four nodes, which is measured once for each shape of a site. Once the study has
# run, its steps on a few nodes are projected to more.
# in:  the 1-device runs; for the projection runs.csv and all runs
# out: resources/collectives/{site}/{shape}.json, results/{experiment}/prediction.csv, prediction.json,
#      projection.csv, projection.json


ALL_REDUCES = requested(PLAN["all_reduces"], lambda wc: f"{wc.site}/{wc.shape}")


rule measure_all_reduce:
    output:
        "resources/collectives/{site}/{shape}.json",
    log:
        "logs/measure_all_reduce/{site}/{shape}.log",
    wildcard_constraints:
        site="[A-Za-z0-9_-]+",
        shape="[0-9]+x[0-9]+",
    # before the trainings, so that the prediction is made before the large jobs run
    priority: 2_000_000_000
    # a failure may pass; the last try leaves a record of it, with which the study ends without a prediction. Each is a
    # job of its own: within a job there is no time for another
    retries: MEASUREMENT_RETRIES if workflow.is_main_process else 0
    conda:
        "../envs/scalewise.yaml"
    # one machine: all cores, so that no training runs at the same time
    threads: ALL_REDUCES["threads"]
    resources:
        **ALL_REDUCES["resources"],
        attempt=lambda wc, attempt: attempt,
    shell:
        'python "$SCALEWISE_SCRIPTS/cli.py" all-reduce --site {wildcards.site:q} '
        "--attempt {resources.attempt} --shape {wildcards.shape:q} --log {log:q} --output {output:q}"


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
        # made when all requested runs have ended
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
        [
            f"results/{name}/prediction.csv"
            for name in EXPERIMENTS
            if EXPERIMENTS[name]["predicted"]
        ],
    log:
        "logs/predict.log",
    localrule: True
    conda:
        "../envs/scalewise.yaml"
    shell:
        "echo 'Predicted: results/*/prediction.csv' | tee {log:q}"
