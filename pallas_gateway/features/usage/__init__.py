"""Who has used what: calls, tokens and cost."""
