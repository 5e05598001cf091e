# Contract: queries to Slurm and one short job on each partition check the site's facts before anything expensive.
# in:  the site file, the prepared datasets
# out: lines on the terminal, ok or with a fix, and the same in logs/preflight; in each session again

import time


rule preflight:
    input:
        lambda wc: begin()
        or sorted(
            {
                path
                for site in PLAN["sites"].values()
                for path in site["preflight"]["datasets"]
            }
        ),
    output:
        "results/preflight/findings.json",
    log:
        "logs/preflight/preflight.log",
    retries: 0
    # it sends its job itself, with the request of a run, and watches it more closely than Snakemake would
    localrule: True
    conda:
        "../envs/scalewise.yaml"
    # differs in each session, so that the checks run again
    params:
        started=time.time(),
        status=lambda wc: adapter.status_command(workflow),
    shell:
        'python "$SCALEWISE_SCRIPTS/cli.py" preflight --status-command {params.status:q} '
        "--output {output:q} 2>&1 | tee {log:q}"
