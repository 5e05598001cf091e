"""How often the answer is wrong, by simulated studies with a known one: the tables of docs/statistics.md."""
