# Contract: a dataset is downloaded once, into one file that every rank maps.
# in:  a name of the catalog
# out: resources/datasets/{dataset}/dataset.safetensors; downloads stay in resources/downloads. A user's program
#      prepares its files where it wants: resources/prepared/{preparation}.done marks that it has


PREPARED = "resources/datasets/{dataset}/dataset.safetensors"


rule prepare_dataset:
    output:
        PREPARED,
    log:
        "logs/prepare_dataset/{dataset}.log",
    localrule: True
    conda:
        "../envs/scalewise.yaml"
    shell:
        'python "$SCALEWISE_SCRIPTS/cli.py" prepare-dataset '
        "--dataset {wildcards.dataset:q} --output {output:q} "
        "2>&1 | tee {log:q}"


rule prepare_program:
    output:
        touch("resources/prepared/{preparation}.done"),
    log:
        "logs/prepare_program/{preparation}.log",
    wildcard_constraints:
        preparation="[0-9a-f]+",
    localrule: True
    conda:
        "../envs/scalewise.yaml"
    params:
        preparation=lambda wc: begin() or PLAN["preparations"][wc.preparation],
    shell:
        'python "$SCALEWISE_SCRIPTS/cli.py" prepare-program '
        "{wildcards.preparation:q} 2>&1 | tee {log:q}"
