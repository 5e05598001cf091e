"""Run a user's program, unedited, as the ranks of a run."""
