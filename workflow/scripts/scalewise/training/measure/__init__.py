"""What is measured of a training: time, memory, utilisation, and on what machine."""
