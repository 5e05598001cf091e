"""A study while it runs: the status of every point, the answer so far, and the expected end."""
