"""Statistics of repeats: intervals, tests and fitted laws that assume no distribution."""
