"""Conversations in a database, for clients without storage of their own. Imported only when enabled.

A process holds no state of a thread between two requests, so any process on the same database can continue it.
"""
