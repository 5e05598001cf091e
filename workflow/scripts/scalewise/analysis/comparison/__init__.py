"""Comparability: the runs that a speedup may join, and the reasons that keep others out."""
