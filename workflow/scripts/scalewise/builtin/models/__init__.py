"""The networks that can be trained."""
