"""A string in JSON, as a pattern."""

INSIDE_OF_STRING = (
    rb'[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u(?:[0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2})'
    rb'|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})[^"\\\x00-\x1f]*+)*+'
)
"""A pattern of what is between the quotes of a string in JSON, without half a pair of surrogates."""
