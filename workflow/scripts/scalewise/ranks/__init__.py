"""A rank around its training: identity, rendezvous, monitor and records; a user's program from outside."""
