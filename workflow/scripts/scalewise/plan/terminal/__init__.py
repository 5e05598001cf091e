"""Texts for the terminal: the plan, what is expected, how it ended."""
