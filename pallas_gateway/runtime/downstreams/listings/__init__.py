"""What downstreams offer: requested, cached and reported."""
