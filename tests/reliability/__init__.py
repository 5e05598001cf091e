"""What Scalewise survives and refuses, as a table that the tests make: docs/reliability.md."""
