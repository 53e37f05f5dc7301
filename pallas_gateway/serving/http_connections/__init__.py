"""Hypercorn's connections and protocols, with limits and with repairs of what a client could misuse.

`connection` is one accepted connection, `http1` and `http2` its protocols, `inbox` the messages for an app. `limits`
bounds how long an answer may stay unread, `faults` logs errors, `platform` checks at import that Hypercorn has the
names that are overridden.
"""
