"""Conversations over HTTP for clients that keep none: `/api/v1`. Described to clients by its own OpenAPI document.

Only what stores is stateful (`pallas_gateway.threads`); here a request becomes a call and its answer a response.
"""
