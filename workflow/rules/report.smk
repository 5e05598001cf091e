# Contract: tables become figures, figures and decisions become reports.
# in:  results/{experiment}/*.csv and *.json of the analysis; prediction.csv and projection.csv, if made
# out: results/{experiment}/figures/*.svg, *.pdf and traces.json, results/{experiment}/report.html, results/report.html, results/decision.json
# Titles and descriptions are in the plan's file and not in params: a change of them makes nothing again.

from scalewise.analysis.report.figures import FIGURES

# what ExperimentResults reads
EXPERIMENT_RESULTS = [
    f"results/{{experiment}}/{name}"
    for name in (
        *("runs.csv", "epochs.csv", "scaling.csv", "options.csv"),
        *("jobstats.csv", "queue_waits.csv"),
        *("laws.json", "provenance.json", "decision.json", "what_if.json"),
    )
]


rule plot_figures:
    input:
        EXPERIMENT_RESULTS,
        prediction=branch(
            lambda wc: EXPERIMENTS[wc.experiment]["predicted"],
            then="results/{experiment}/prediction.csv",
        ),
        projection=branch(
            lambda wc: EXPERIMENTS[wc.experiment]["projected"],
            then="results/{experiment}/projection.csv",
        ),
    output:
        **{
            name: report(
                f"results/{{experiment}}/figures/{name}.svg",
                caption=f"../report/{name}.rst",
                category="{experiment}",
                labels={"figure": name},
            )
            for name in FIGURES
        },
        pdf=expand("results/{{experiment}}/figures/{name}.pdf", name=FIGURES),
        traces="results/{experiment}/figures/traces.json",
    log:
        "logs/plot_figures/{experiment}.log",
    localrule: True
    conda:
        "../envs/scalewise.yaml"
    params:
        definition=lambda wc: EXPERIMENTS[wc.experiment]["definition"],
    shell:
        'python "$SCALEWISE_SCRIPTS/cli.py" figures '
        "results/{wildcards.experiment:q} 2>&1 | tee {log:q}"


rule write_report:
    input:
        EXPERIMENT_RESULTS,
        expand("results/{{experiment}}/figures/{name}.svg", name=FIGURES),
        "results/{experiment}/figures/traces.json",
    output:
        "results/{experiment}/report.html",
    log:
        "logs/write_report/{experiment}.log",
    # that of an experiment on several partitions has another rule
    wildcard_constraints:
        experiment="|".join(EXPERIMENTS),
    localrule: True
    conda:
        "../envs/scalewise.yaml"
    shell:
        'python "$SCALEWISE_SCRIPTS/cli.py" write-report '
        "--output {output:q} "
        "results {wildcards.experiment:q} 2>&1 | tee {log:q}"


rule write_overall_report:
    input:
        expand("results/{experiment}/report.html", experiment=list(EXPERIMENTS)),
        expand("results/{comparison}/partitions.json", comparison=list(COMPARISONS)),
    output:
        html=report(
            "results/report.html",
            caption="../report/report.rst",
            category="Decisions",
            labels={"report": "all experiments"},
        ),
        decision="results/decision.json",
    log:
        "logs/write_report.log",
    localrule: True
    conda:
        "../envs/scalewise.yaml"
    params:
        experiments=list(EXPERIMENTS),
    shell:
        'python "$SCALEWISE_SCRIPTS/cli.py" write-report '
        "--output {output.html:q} "
        "--decisions {output.decision:q} results 2>&1 | tee {log:q}"


rule plan:
    log:
        "logs/plan.log",
    localrule: True
    conda:
        "../envs/scalewise.yaml"
    shell:
        "echo 'This was the plan; nothing was trained.' | tee {log:q}"
