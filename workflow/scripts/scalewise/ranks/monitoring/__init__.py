"""Measurements of a rank's device and machine from outside the training."""
