"""From files to one `Configuration`: reading, rules between values, messages, and what only a restart can change."""
