"""From runs to jobs: command lines, environments, and what Slurm must agree to."""
