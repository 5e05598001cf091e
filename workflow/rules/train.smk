# Contract: one run is trained and recorded, or fails with a reason.
# in:  the run's definition; the prepared dataset; or the files of a user's program
# out: results/{experiment}/runs/{run}/record.json, the last file that the job writes, whole. A run that failed leaves
#      failure.json in its place. train.log there has the output of the ranks; the log what the job reports

# those of another workflow: `use rule train from ... with: resources:`
OTHER_RESOURCES = adapter.take_resources(workflow, "train")


rule train:
    input:
        unpack(train_inputs),
    output:
        record="results/{experiment}/runs/{run}/record.json",
    log:
        "logs/train/{experiment}/{run}.log",
    # repeats in shuffled order, each before the next
    priority: lambda wc: of_run(wc)["priority"]
    conda:
        "../envs/scalewise.yaml"
    # one machine: all cores, so that no two trainings overlap. A cluster: the CPUs of a node's ranks
    threads: lambda wc: of_run(wc)["threads"]
    # the request to Slurm has the same form for one device and for many; set-resources of a profile replaces it
    resources:
        # with those that a run does not have: default-resources of a profile would add them
        **{
            name: resource(name)
            for names in (OF_DEVICES, *(job["resources"] for job in RUNS.values()))
            for name in names
        }
        | OTHER_RESOURCES,
        attempt=lambda wc, attempt: attempt,
    # all that defines the run, and nothing else: a change of it trains the run again
    params:
        definition=lambda wc: of_run(wc)["definition"],
    shell:
        'python "$SCALEWISE_SCRIPTS/cli.py" train --attempt {resources.attempt} --log {log:q} '
        "{wildcards.experiment:q} {wildcards.run:q} {output.record:q}"
