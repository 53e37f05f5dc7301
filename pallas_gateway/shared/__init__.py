"""State that several processes of a gateway, or several gateways, have in common."""
