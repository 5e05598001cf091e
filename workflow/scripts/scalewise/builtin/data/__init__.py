"""Files that become batches: downloaded, checked, mapped, shared out."""
