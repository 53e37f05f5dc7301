"""The former name of `preparation`."""

from pallas_gateway.runtime.preparation import prepare, shut_down

__all__ = ["prepare", "shut_down"]
