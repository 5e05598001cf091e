"""What repeats say: intervals, tests and fitted laws that assume no distribution."""
