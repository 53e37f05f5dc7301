"""What the product is made of: its features, and the changes of libraries. No other package knows them."""

from pallas_gateway import changes, fast_paths, repairs


def use_changes() -> None:
    """Have this process use all repairs and fast paths; they are imported and made when they are needed."""
    changes.packages = (repairs, fast_paths)
