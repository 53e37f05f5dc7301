"""The steps that bring a database to the tables of `threads/tables.py`, run by `threads/migrating.py`."""
