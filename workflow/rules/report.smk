# Contract: tables become figures, answers and figures become the report.
# in:  results/{experiment}/*.csv and answer.json of the analysis
# out: results/{experiment}/figures/*.svg and *.pdf, results/report.html, results/decision.json
# Titles are in the plan's file and not in params: a change of one makes nothing again.


rule plot:
    input:
        TABLES,
    output:
        report(
            directory("results/{experiment}/figures"),
            patterns=["{figure}.svg"],
            caption="../report/figure.rst",
            category="{experiment}",
            labels={"figure": "{figure}"},
        ),
    log:
        "logs/plot/{experiment}.log",
    localrule: True
    conda:
        "../envs/scalewise.yaml"
    shell:
        'python "$SCALEWISE_SCRIPTS/cli.py" plot '
        "results/{wildcards.experiment:q} 2>&1 | tee {log:q}"


rule write_report:
    input:
        expand(TABLES, experiment=list(EXPERIMENTS)),
        expand("results/{experiment}/figures", experiment=list(EXPERIMENTS)),
    output:
        html=report(
            "results/report.html",
            caption="../report/report.rst",
            category="Answers",
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
        "--output {output.html:q} --decisions {output.decision:q} "
        "results 2>&1 | tee {log:q}"
