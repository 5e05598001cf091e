"""Predictions for any device count, from one device's computing and the measured all-reduce."""
