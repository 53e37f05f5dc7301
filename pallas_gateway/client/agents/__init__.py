"""`pallas-gateway agents`: the agents of a running gateway; those of its database are made and changed here."""
