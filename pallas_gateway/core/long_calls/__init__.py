"""Calls whose course is stored, so that another process goes on with them after theirs has ended."""
