"""What only a GPU can show; `make gpu` runs it, with the other tests that are marked `gpu`."""
