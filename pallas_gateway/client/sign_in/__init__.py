"""Signing in at a gateway's authorization server: `pallas-gateway login` and `logout`, and the tokens they keep."""
