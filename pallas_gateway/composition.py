"""The composition root: the changes of libraries that the product runs with. Only this module imports them."""

from pallas_gateway import fast_paths, repairs
from pallas_gateway.changes import registry


def use_changes() -> None:
    """Have this process use all repairs and fast paths; they are imported and made when they are needed."""
    registry.use(repairs, fast_paths)
