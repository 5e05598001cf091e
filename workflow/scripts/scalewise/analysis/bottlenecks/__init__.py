"""Where the time of a step goes, and what keeps a training from scaling."""
