"""Downstreams that are programs (stdio): their processes, connections and listings."""
