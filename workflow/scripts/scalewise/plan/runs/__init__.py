"""The runs of an experiment: definitions, allocations and rounds."""
