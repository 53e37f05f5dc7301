"""HTTP connections on Hypercorn: its protocols with limits, and with repairs of what a client could misuse.

`connection` is one accepted connection, `http1` and `http2` are what it speaks, `inbox` is what an app receives,
`limits` bounds how long a client may leave an answer unread, `faults` logs what went wrong, and `platform` checks at
import that the installed Hypercorn has the names that all of them override.
"""
