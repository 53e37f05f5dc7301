"""YAML with file and line: reading it, filling in placeholders, editing it without losing comments."""
