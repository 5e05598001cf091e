"""A rank's identity, its device and CPUs, and its rendezvous with the other ranks."""
