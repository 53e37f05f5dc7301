"""`/api/v1`: conversations over HTTP for clients without storage of their own, described by an OpenAPI document.

Conversations are stored by `pallas_gateway.features.threads`; this package turns requests into calls and replies into
responses.
"""
