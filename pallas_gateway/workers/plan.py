"""What several workers are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

    from pallas_gateway.workers.start import Start


@dataclass(frozen=True, slots=True)
class Plan:
    """What a fleet is made of.

    Attributes:
        count: how many workers.
        command: the program that each runs.
        environ: gives their environment whenever one starts.
        start: what each is given, but for its number and what is its own.
        sockets: the bound ones that `start` names.
    """

    count: int
    command: Sequence[str]
    environ: Callable[[], Mapping[str, str]]
    start: Start
    sockets: Sequence[socket.socket]
