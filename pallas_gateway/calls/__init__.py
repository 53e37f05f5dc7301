"""One call: what was asked, by whom, what came back and what was told meanwhile.

Values and pure functions, and the registry of calls that clients can cancel. No HTTP and no fast-agent.
"""
