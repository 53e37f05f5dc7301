"""Hypercorn's connections and protocols, with limits and with repairs of what a client could misuse.

`connection` is one accepted connection, `inbox` the messages for an app.
`connection` bounds how long an answer may stay unread, and logs errors. `FAULTS` lists the mended faults of
Hypercorn, `RELIED_ON` the names that are overridden; `connection.install` checks them.
"""
