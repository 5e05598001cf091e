"""The runs of an experiment, and what each of them is given."""
