"""A run from outside: one writer, its ranks watched, its end told."""
