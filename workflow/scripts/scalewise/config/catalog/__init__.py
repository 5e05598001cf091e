"""Facts of datasets, models and programs that the planner needs without loading them."""
