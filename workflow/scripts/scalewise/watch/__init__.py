"""A study while it runs: how every point stands, what that says so far, and when it should be done."""
