"""The decision on the number of devices, its wording and its cautions."""
