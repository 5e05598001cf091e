"""Trainings by a user's own program, which nobody edits."""
