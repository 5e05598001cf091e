"""Checks of an experiment's values, each and together: a file for each subject."""
