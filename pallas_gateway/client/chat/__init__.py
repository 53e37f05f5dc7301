"""`pallas-gateway chat`: a client with its own store of conversations."""
