"""Measurements of a training: time, memory, utilization, and the machine they are of."""
