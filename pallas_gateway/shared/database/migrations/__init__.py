"""The steps that bring a database to the tables of `tables.py`, run by `migrating.py`."""
