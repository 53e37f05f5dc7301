"""Limits of callers: which rules match a call, and what is left of them."""
