"""Rules for what may not be asked for, or not together: a file for each subject."""
