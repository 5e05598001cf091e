"""The report of a study: figures, tables and one page."""
