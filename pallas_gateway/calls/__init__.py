"""One call: what was asked, by whom, what came back and what was told meanwhile.

Values and pure functions, beside three small keepers of a running process: the channel, the running calls and the
requests that can be cancelled. No HTTP and no fast-agent here.
"""
