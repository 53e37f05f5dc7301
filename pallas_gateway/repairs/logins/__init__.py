"""Faults of providers' logins: Codex, xAI, GitHub Copilot and Azure."""
