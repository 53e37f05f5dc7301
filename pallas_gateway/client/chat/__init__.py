"""`pallas-gateway chat`: a client that keeps conversations in files, or on the gateway."""
