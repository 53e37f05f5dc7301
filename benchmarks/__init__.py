"""What the gateway costs per call, measured beside its alternatives. `make bench`; see docs/performance.md.

Nothing of pallas_gateway imports this folder.
"""
