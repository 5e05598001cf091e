# Contract: one run, trained and recorded, or a reason why not.
# in:  the prepared dataset and the run's definition
# out: results/{experiment}/runs/{run}/summary.json, epochs.csv, ranks.csv; train.log survives a failure


rule train:
    input:
        dataset=lambda wc: "resources/datasets/{}/dataset.safetensors".format(
            dataset_id(RUNS[wc.experiment, wc.run].settings.dataset)
        ),
    output:
        summary="results/{experiment}/runs/{run}/summary.json",
        epochs="results/{experiment}/runs/{run}/epochs.csv",
        ranks="results/{experiment}/runs/{run}/ranks.csv",
    log:
        "results/{experiment}/runs/{run}/train.log",
    # repeats in shuffled order, each before the next
    priority: lambda wc: priority(RUNS[wc.experiment, wc.run])
    conda:
        "../envs/scalewise.yaml"
    # what is measured has the machine to itself: this is cut to all cores that there are, and
    # train.py holds a lock besides
    threads: 1024
    resources:
        runtime=runtime(SPECS),
        mem_mb=memory(SPECS),
    # all that defines the run, and nothing else: a change makes it anew
    params:
        definition=lambda wc: RUNS[wc.experiment, wc.run].definition,
    shell:
        'python "$SCALEWISE_SCRIPTS/train.py" '
        "--run {params.definition:q} --dataset {input.dataset:q} "
        "--limit-minutes {resources.runtime} --log {log:q} {output.summary:q}"
