"""From files to batches: fetched, decoded, checked, mapped, shared out."""
