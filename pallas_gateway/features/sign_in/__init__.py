"""How people sign in: the issuer, for the console and the command line."""
