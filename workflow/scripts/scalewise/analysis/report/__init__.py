"""The figures and the page."""
