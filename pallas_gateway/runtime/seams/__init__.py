"""Where the product enters fast-agent: one wrapper for each name, listed in `runtime/preparation.py`."""
