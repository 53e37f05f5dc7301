"""One call as values and pure functions: what was asked, by whom, what came back. No I/O and no fast-agent here."""
