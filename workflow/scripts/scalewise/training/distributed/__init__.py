"""A rank's identity, its device, and its meeting with the others."""
