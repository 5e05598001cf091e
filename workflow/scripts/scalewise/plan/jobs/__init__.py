"""Runs become jobs: command lines, environments, and what Slurm must agree to."""
