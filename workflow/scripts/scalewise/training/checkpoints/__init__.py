"""What a training goes on from: written by all ranks together, checked before it is used."""
