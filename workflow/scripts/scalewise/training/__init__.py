"""One run: its ranks, its data, its loop and its measurements. The only room with torch."""
