# Contract: the records of an experiment's runs become tables and a decision, and decide which runs are needed next.
# in:  results/{experiment}/runs/{run}/summary.json
# out: results/{experiment}/ runs.csv, epochs.csv, scaling.csv, gains.csv, splits.csv, options.csv, jobstats.csv,
#      queue_waits.csv, laws.json, decision.json, what_if.json, provenance.json, fingerprints.json;
#      repeats/round{round}.json of an experiment whose next runs follow from earlier ones


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
            run=STUDY.experiments[wc.experiment].requested_run_names(
                judged_rounds(
                    checkpoints.judge_round.get, wc.experiment, before=int(wc.round)
                )
            ),
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
        "--round {wildcards.round} -- "
        "results/{wildcards.experiment:q} 2>&1 | tee {log:q}"


rule compute_scaling:
    input:
        rounds=lambda wc: expand(
            "results/{experiment}/repeats/round{round}.json",
            experiment=wc.experiment,
            round=required_rounds(
                STUDY.experiments[wc.experiment].experiment,
                judged_rounds(checkpoints.judge_round.get, wc.experiment),
            ),
        ),
        runs=lambda wc: expand(
            "results/{experiment}/runs/{run}/summary.json",
            experiment=wc.experiment,
            run=STUDY.experiments[wc.experiment].requested_run_names(
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
        splits="results/{experiment}/splits.csv",
        options="results/{experiment}/options.csv",
        jobstats="results/{experiment}/jobstats.csv",
        queue_waits="results/{experiment}/queue_waits.csv",
        decision="results/{experiment}/decision.json",
        what_if="results/{experiment}/what_if.json",
        provenance="results/{experiment}/provenance.json",
        fingerprints="results/{experiment}/fingerprints.json",
        laws="results/{experiment}/laws.json",
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
