"""Checkpoints of a training: written by all ranks together, checked before they are used."""
