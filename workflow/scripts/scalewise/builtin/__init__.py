"""The shipped training: data, models, loop, options and checkpoints."""
