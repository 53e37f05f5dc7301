"""One call: what was asked, by whom, what came back and what was told meanwhile.

Values and pure functions, beside the calls that can be cancelled. No HTTP and no fast-agent here.
"""
