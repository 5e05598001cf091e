"""Datasets and models, as far as they are known without loading them."""
