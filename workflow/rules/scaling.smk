# Contract: what the runs of an experiment say together, and which more of them are needed.
# in:  the records of its runs; of one that chooses its device counts its prediction, too
# out: results/{experiment}/ runs.csv, epochs.csv, scaling.csv, gains.csv, options.csv, laws.json, decision.json, what_if.json,
#      provenance.json, fingerprints.json, proposal.csv, .md and .tex;
#      repeats/round{round}.json of an experiment whose next runs follow from those before


checkpoint judge_round:
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
                    checkpoints.judge_round.get, wc.experiment, before=int(wc.round)
                )
            ),
        ),
        prediction=lambda wc: (
            [f"results/{wc.experiment}/prediction.csv"]
            if wc.experiment in PREDICTED
            and STUDY.experiments[wc.experiment].spec.chooses_devices
            else []
        ),
        # what they cost counts in a budget
        all_reduces=lambda wc: (
            EXPERIMENTS[wc.experiment]["all_reduces"]
            if wc.experiment in PREDICTED
            and STUDY.experiments[wc.experiment].spec.budget
            else []
        ),
    output:
        "results/{experiment}/repeats/round{round}.json",
    log:
        "logs/judge_round/{experiment}.round{round}.log",
    localrule: True
    conda:
        "../envs/scalewise.yaml"
    params:
        definition=lambda wc: EXPERIMENTS[wc.experiment]["rounds"],
    shell:
        'python "$SCALEWISE_SCRIPTS/cli.py" judge '
        "--round {wildcards.round} "
        "--all-reduces {input.all_reduces:q} -- "
        "results/{wildcards.experiment:q} 2>&1 | tee {log:q}"


rule compute_scaling:
    input:
        rounds=lambda wc: expand(
            "results/{experiment}/repeats/round{round}.json",
            experiment=wc.experiment,
            round=required_rounds(
                STUDY.experiments[wc.experiment].spec,
                judged_rounds(checkpoints.judge_round.get, wc.experiment),
            ),
        ),
        runs=lambda wc: expand(
            "results/{experiment}/runs/{run}/summary.json",
            experiment=wc.experiment,
            run=STUDY.experiments[wc.experiment].asked_run_names(
                judged_rounds(checkpoints.judge_round.get, wc.experiment)
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
        what_if="results/{experiment}/what_if.json",
        provenance="results/{experiment}/provenance.json",
        fingerprints="results/{experiment}/fingerprints.json",
        laws="results/{experiment}/laws.json",
        proposal=expand(
            "results/{{experiment}}/proposal.{kind}", kind=["csv", "md", "tex"]
        ),
    log:
        "logs/compute_scaling/{experiment}.log",
    localrule: True
    conda:
        "../envs/scalewise.yaml"
    params:
        definition=lambda wc: EXPERIMENTS[wc.experiment]["definition"],
    shell:
        'python "$SCALEWISE_SCRIPTS/cli.py" scaling '
        "results/{wildcards.experiment:q} 2>&1 | tee {log:q}"
