"""The analysis: records of many runs become tables, a decision, figures and a report."""
