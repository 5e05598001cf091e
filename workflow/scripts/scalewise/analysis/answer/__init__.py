"""How many devices to use: the decision, its wording, its doubts, its table for a proposal."""
