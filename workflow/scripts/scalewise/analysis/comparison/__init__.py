"""Which runs may be joined in a speedup, and what keeps others out."""
