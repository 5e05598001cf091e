# Contract: one run, trained and recorded, or a reason why not.
# in:  the prepared dataset and the run's definition; weights to begin from, if any; or a program of the user's own
#      with its files
# out: results/{experiment}/runs/{run}/summary.json, the last of all that the run leaves in its folder: Snakemake deletes no
#      other file of it but train.log, and a job that finds the run's record gives it to Snakemake again


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
    # what Slurm is asked for, alike for one device and for many; plan/runs/allocation.py says why
    resources:
        **REQUESTED["resources"],
        attempt=lambda wc, attempt: attempt,
    # all that defines the run, and nothing else: a change makes it anew
    params:
        definition=lambda wc: TRAININGS[wc.experiment, wc.run]["definition"],
    shell:
        'python "$SCALEWISE_SCRIPTS/cli.py" train --attempt {resources.attempt} --log {log:q} '
        "{wildcards.experiment:q} {wildcards.run:q} {output.summary:q}"
