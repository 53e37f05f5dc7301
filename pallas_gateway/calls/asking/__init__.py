"""Questions of a running call to its caller: when they are put, how a call waits, and how it is resumed."""
