"""Rules on what an experiment may not have, or not together: a file for each subject."""
