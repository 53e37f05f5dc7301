"""One module for each step; a step that has been released is never changed.

The first sentence of a module is what `pallas-gateway database status` shows. A step that removes or renames something
that older releases use sets `STOPS_OLDER_RELEASES = True`.
"""
