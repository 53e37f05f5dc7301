"""Makes the `FastAgent` of an `AgentSpec`: imports its module, or builds it from a declaration or a card."""
