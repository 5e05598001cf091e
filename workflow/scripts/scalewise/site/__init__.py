"""What a cluster says of itself: the command that writes the site file, and the preflight."""
