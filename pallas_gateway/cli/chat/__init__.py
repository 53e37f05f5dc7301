"""`pallas-gateway chat`: talking to an agent. The conversation is the client's own and stays on this machine."""
