"""From the records of many runs to scaling figures, a decision and a report."""
