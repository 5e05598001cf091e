# Contract: queries to Slurm and one short job on each partition check the site's facts before anything expensive.
# in:  the site file, the prepared datasets
# out: lines on the terminal, ok or with a fix, and the same in logs/preflight; in each session again


rule preflight:
    input:
        lambda wc: begin()
        or sorted(
            {
                job["inputs"]["dataset"]
                for job in RUNS.values()
                if job["inputs"]["dataset"]
            }
        ),
    log:
        "logs/preflight/preflight.log",
    retries: 0
    # it sends its job itself, with the request of a run, and watches it more closely than Snakemake would
    localrule: True
    conda:
        "../envs/scalewise.yaml"
    params:
        status=lambda wc: adapter.status_command(workflow),
    shell:
        'python "$SCALEWISE_SCRIPTS/cli.py" preflight --status-command {params.status:q} '
        "--output logs/preflight 2>&1 | tee {log:q}"
