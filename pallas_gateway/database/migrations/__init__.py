"""The steps that bring a database to the tables of `database/tables.py`, run by `database/migrating.py`."""
