"""The APIs by which calls come in: each decodes a request, follows one running call, and encodes what it tells."""
