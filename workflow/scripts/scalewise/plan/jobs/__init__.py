"""The jobs of runs: command lines, environments, and checks with Slurm."""
