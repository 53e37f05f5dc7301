"""What an operator sees: metrics and logs. Nothing here decides anything."""
