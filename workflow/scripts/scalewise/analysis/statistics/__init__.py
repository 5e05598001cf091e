"""Statistics of repeats: intervals and tests."""
