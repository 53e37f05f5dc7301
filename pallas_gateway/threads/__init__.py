"""Conversations kept for clients that keep none: their tables, and who may write to one. Imported only when it is on.

The gateway's processes hold nothing of a thread between two requests: any of them, on one database, continues any.
"""
