"""The audit log: a line for each decision, in a chain of hashes."""
