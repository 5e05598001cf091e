"""One rank of a run: its data, its loop and its measurements. The only room with torch."""
