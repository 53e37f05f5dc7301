"""YAML files: data with lines, placeholders, and edits that keep comments."""
