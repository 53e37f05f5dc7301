"""Settings that only a restart can change."""

from collections.abc import Iterator
from typing import Any

from pallas_gateway.config.loading.configuration import Configuration


def applicable(present: Configuration, wanted: Configuration) -> tuple[Configuration, tuple[str, ...]]:
    """Return `wanted` without the changes that require a restart, and the keys of those."""
    fixed = list(needing_a_restart(present, wanted))
    for _, name, value in fixed:
        wanted = wanted.with_gateway_value(name, value) if name else wanted.with_fastagent_of(present)
    if present.bound_port is not None:
        wanted = wanted.with_bound_port(present.bound_port)
    return wanted, tuple(key for key, _, _ in fixed)


def needing_a_restart(present: Configuration, wanted: Configuration) -> Iterator[tuple[str, str, Any]]:
    """Yield each changed setting that requires a restart: its key, its name under `gateway`, and its present value."""
    before, after = present.deployment.gateway, wanted.deployment.gateway
    if present.per_port != wanted.per_port:
        yield "gateway.per_port", "per_port", before.per_port
    if present.bind_host != wanted.bind_host:
        yield "gateway.host", "host", before.host
    if present.bound_port is not None and present.configured_port != wanted.configured_port:
        yield "gateway.port", "port", before.port
    if (before.tls is None) != (after.tls is None):
        yield "gateway.tls", "tls", before.tls
    for key in ("threads", "threads_lease_seconds"):
        if getattr(before, key) != getattr(after, key):
            yield f"gateway.{key}", key, getattr(before, key)
    if present.named_fastagent_file != wanted.named_fastagent_file:
        yield "fastagent_config", "", None
