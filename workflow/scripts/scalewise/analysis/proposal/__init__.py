"""The job script that an experiment's answer amounts to."""
