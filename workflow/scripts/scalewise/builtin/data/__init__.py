"""Files that become batches: fetched, decoded, checked, mapped, shared out."""
