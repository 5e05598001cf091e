"""One run from outside: its ranks started, watched and ended, and one writer for its folder. No torch."""
