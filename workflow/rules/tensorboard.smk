# Contract: the records of runs become event files, for users of TensorBoard.
# in:  results/{experiment}/runs.csv, which names the runs, and the records of these
# out: results/{experiment}/tensorboard/{run}/events.out.tfevents.*; of several partitions in a folder for each

WITH_EVENT_FILES = [
    name for name, parts in QUESTIONS.items() if EXPERIMENTS[parts[0]]["tensorboard"]
]


rule write_event_files:
    input:
        "results/{experiment}/runs.csv",
    output:
        directory("results/{experiment}/tensorboard"),
    log:
        "logs/write_event_files/{experiment}.log",
    wildcard_constraints:
        experiment="|".join(QUESTIONS),
    localrule: True
    conda:
        "../envs/tensorboard.yaml"
    shell:
        'python "$SCALEWISE_SCRIPTS/cli.py" event-files --runs {input:q} '
        "results/{wildcards.experiment:q} 2>&1 | tee {log:q}"
