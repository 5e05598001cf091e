"""How many devices to use: the decision, its wording and its cautions."""
