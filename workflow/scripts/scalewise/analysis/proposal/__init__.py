"""A computing-time proposal from a study: its text, table, figures and the checklist of its centre."""
