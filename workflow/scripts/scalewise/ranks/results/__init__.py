"""Records of a run: what its ranks measured, joined and written."""
