# Contract: one run is trained and recorded, or fails with a reason.
# in:  the run's definition; the prepared dataset; or the files of a user's program
# out: results/{experiment}/runs/{run}/summary.json, which the job writes last. Snakemake deletes no other file in the
#      run's folder but train.log, so a job that finds the run's record links it as summary.json again


REQUESTED = requested(TRAININGS, lambda wc: (wc.experiment, wc.run))


rule train:
    input:
        unpack(train_inputs),
    output:
        summary="results/{experiment}/runs/{run}/summary.json",
    log:
        "results/{experiment}/runs/{run}/train.log",
    # repeats in shuffled order, each before the next
    priority: lambda wc: TRAININGS[wc.experiment, wc.run]["priority"]
    conda:
        "../envs/scalewise.yaml"
    # one machine: all cores, so that no two trainings overlap. A cluster: the CPUs of a node's ranks
    threads: REQUESTED["threads"]
    # the request to Slurm has the same form for one device and for many: plan/runs/allocation.py
    resources:
        **REQUESTED["resources"],
        attempt=lambda wc, attempt: attempt,
    # all that defines the run, and nothing else: a change of it trains the run again
    params:
        definition=lambda wc: TRAININGS[wc.experiment, wc.run]["definition"],
    shell:
        'python "$SCALEWISE_SCRIPTS/cli.py" train --attempt {resources.attempt} --log {log:q} '
        "{wildcards.experiment:q} {wildcards.run:q} {output.summary:q}"
