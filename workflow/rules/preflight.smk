# Contract: queries to Slurm and one short job check the site's facts before anything expensive.
# in:  the site file, the prepared datasets
# out: lines on the terminal, ok or with a fix, and the same in results/preflight; in each session again

import time


rule check_site:
    output:
        "results/preflight/site.json",
    log:
        "logs/preflight/check_site.log",
    retries: 0
    localrule: True
    conda:
        "../envs/scalewise.yaml"
    # differs in each session, so that the checks run again
    params:
        started=time.time(),
    shell:
        "set -o pipefail; "
        'python "$SCALEWISE_SCRIPTS/cli.py" check-site --output {output:q} 2>&1 | tee {log:q}'


HELLOS = {name: site["hello"] for name, site in PLAN["sites"].items()}


def of_hello(wildcards):
    """Return the hello job of a partition."""
    return HELLOS[wildcards.partition.removeprefix("@")]


rule hello:
    input:
        "results/preflight/site.json",
        lambda wc: PLAN["sites"][wc.partition.removeprefix("@")]["preflight"][
            "datasets"
        ],
    output:
        "results/preflight/hello{partition}.json",
    log:
        "logs/preflight/hello{partition}.log",
    # without partitions, the name is empty
    wildcard_constraints:
        partition="(@[A-Za-z0-9_-]+)?",
    retries: 0
    conda:
        "../envs/scalewise.yaml"
    threads: lambda wc: of_hello(wc)["threads"]
    resources:
        **resources_of(HELLOS.values(), of_hello),
    params:
        started=time.time(),
    shell:
        'python "$SCALEWISE_SCRIPTS/cli.py" hello --log {log:q} --output {output:q}'


rule preflight:
    input:
        [
            f"results/preflight/hello{'@' if name else ''}{name}.json"
            for name in PLAN["sites"]
        ],
    log:
        "logs/preflight/preflight.log",
    retries: 0
    localrule: True
    conda:
        "../envs/scalewise.yaml"
    shell:
        "set -o pipefail; "
        'python "$SCALEWISE_SCRIPTS/cli.py" conclude-preflight {input:q} 2>&1 | tee {log:q}'
