"""The choice of the next runs: device counts that may be the answer, and repeats that make it clear."""
