# Contract: what the runs of an experiment say together, and whether more of them are needed.
# in:  the records of its runs
# out: results/{experiment}/ runs.csv, epochs.csv, scaling.csv, gains.csv, options.csv, laws.json, decision.json, provenance.json,
#      fingerprints.json, proposal.csv, .md and .tex;
#      repeats/round{round}.json of an experiment whose repeats go on until the intervals are narrow


localrules:
    judge_repeats,
    compute_scaling,


checkpoint judge_repeats:
    input:
        rounds=lambda wc: expand(
            "results/{experiment}/repeats/round{round}.json",
            experiment=wc.experiment,
            round=range(1, int(wc.round)),
        ),
        runs=lambda wc: expand(
            "results/{experiment}/runs/{run}/summary.json",
            experiment=wc.experiment,
            run=STUDY.experiments[wc.experiment].asked_run_names(
                judged_rounds(
                    checkpoints.judge_repeats.get, wc.experiment, before=int(wc.round)
                )
            ),
        ),
    output:
        "results/{experiment}/repeats/round{round}.json",
    log:
        "logs/judge_repeats/{experiment}.round{round}.log",
    conda:
        "../envs/scalewise.yaml"
    params:
        definition=lambda wc: STUDY.experiments[wc.experiment].repeats_definition,
    shell:
        'python "$SCALEWISE_SCRIPTS/analysis.py" repeats '
        "--experiment {params.definition:q} --round {wildcards.round} "
        "results/{wildcards.experiment:q} 2>&1 | tee {log:q}"


rule compute_scaling:
    input:
        rounds=lambda wc: expand(
            "results/{experiment}/repeats/round{round}.json",
            experiment=wc.experiment,
            round=required_rounds(
                SPECS[wc.experiment].repeats,
                judged_rounds(checkpoints.judge_repeats.get, wc.experiment),
            ),
        ),
        runs=lambda wc: expand(
            "results/{experiment}/runs/{run}/summary.json",
            experiment=wc.experiment,
            run=STUDY.experiments[wc.experiment].asked_run_names(
                judged_rounds(checkpoints.judge_repeats.get, wc.experiment)
            ),
        ),
    output:
        runs="results/{experiment}/runs.csv",
        epochs="results/{experiment}/epochs.csv",
        scaling=report(
            "results/{experiment}/scaling.csv",
            caption="../report/scaling.rst",
            category="{experiment}",
            labels={"table": "scaling"},
        ),
        gains="results/{experiment}/gains.csv",
        options="results/{experiment}/options.csv",
        decision="results/{experiment}/decision.json",
        provenance="results/{experiment}/provenance.json",
        fingerprints="results/{experiment}/fingerprints.json",
        laws="results/{experiment}/laws.json",
        proposal=expand(
            "results/{{experiment}}/proposal.{kind}", kind=["csv", "md", "tex"]
        ),
    log:
        "logs/compute_scaling/{experiment}.log",
    conda:
        "../envs/scalewise.yaml"
    params:
        definition=lambda wc: DEFINITIONS[wc.experiment],
    shell:
        'python "$SCALEWISE_SCRIPTS/analysis.py" scaling '
        "--experiment {params.definition:q} "
        "results/{wildcards.experiment:q} 2>&1 | tee {log:q}"
