"""The parts of a step's time, and the causes that keep a training from scaling."""
