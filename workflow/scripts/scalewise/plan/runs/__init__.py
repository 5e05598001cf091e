"""Which runs an experiment has, and what each of them is given."""
