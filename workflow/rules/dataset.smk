# Contract: a dataset, decoded once and checked, in the one file that every rank maps.
# in:  a known name, or the user's own file
# out: resources/datasets/{dataset}/dataset.safetensors


localrules:
    prepare_dataset,


rule prepare_dataset:
    input:
        own=lambda wc: [path for path in [DATASETS[wc.dataset]] if path != wc.dataset],
    output:
        "resources/datasets/{dataset}/dataset.safetensors",
    log:
        "logs/prepare_dataset/{dataset}.log",
    conda:
        "../envs/scalewise.yaml"
    params:
        dataset=lambda wc: DATASETS[wc.dataset],
    shell:
        'python "$SCALEWISE_SCRIPTS/prepare_dataset.py" '
        "--dataset {params.dataset:q} --output {output:q} "
        "2>&1 | tee {log:q}"
