"""Hypercorn's connections and protocols, with limits and with repairs of what a client could misuse.

`connection` is one accepted connection with HTTP/1.1, `http2` the other protocol, `inbox` the messages for an app.
`limits` bounds how long an answer may stay unread, and logs errors; `platform` checks at import that Hypercorn has the
names that are overridden.
"""
