# Contract: the answer of an experiment becomes a computing-time proposal, if the experiment names a centre.
# in:  what an analysis reads and writes; the template of the centre
# out: results/{experiment}/proposal/: proposal.md, table.csv, job.sh

PROPOSED = [name for name, each in EXPERIMENTS.items() if each["proposal"]]

if PROPOSED:
    # it takes long to load, in each job
    from scalewise.config.experiment import template_of

    rule proposal:
        input:
            TABLES,
            template=lambda wc: template_of(
                EXPERIMENTS[wc.experiment]["proposal"]["centre"]
            ),
        output:
            multiext(
                "results/{experiment}/proposal/", "proposal.md", "table.csv", "job.sh"
            ),
        log:
            "logs/proposal/{experiment}.log",
        wildcard_constraints:
            experiment="|".join(PROPOSED),
        localrule: True
        conda:
            "../envs/scalewise.yaml"
        params:
            definition=lambda wc: list(
                EXPERIMENTS[wc.experiment]["definitions"].values()
            ),
            proposal=lambda wc: EXPERIMENTS[wc.experiment]["proposal"],
            job_script=lambda wc: EXPERIMENTS[wc.experiment]["job_script"],
        shell:
            'python "$SCALEWISE_SCRIPTS/cli.py" proposal '
            "results/{wildcards.experiment:q} 2>&1 | tee {log:q}"
