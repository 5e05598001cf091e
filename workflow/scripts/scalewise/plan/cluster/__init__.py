"""The reports of a cluster's Slurm, and the site file that is written from them."""
