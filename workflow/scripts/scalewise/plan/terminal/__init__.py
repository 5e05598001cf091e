"""What the terminal shows: the plan, what is expected, how it ended."""
