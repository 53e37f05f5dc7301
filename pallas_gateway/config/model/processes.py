"""The keys of a stdio server's declaration about its processes.

Like those in `forwarding`, they are read by the configuration's checks and by the runtime.
"""

from pydantic import ConfigDict

from pallas_gateway.config.model.section import Section
from pallas_gateway.config.model.values import Count, CountOrZero, Flag, Seconds, Text


class ProcessSettings(Section):
    """The keys of a server's declaration about its processes; others are ignored."""

    model_config = ConfigDict(extra="ignore")

    warm: CountOrZero = 1
    """Processes that are started and initialised in advance."""

    max_processes: Count = 16
    """Processes at once, those in use and those kept ready."""

    idle_seconds: Seconds = 300.0
    """A process that was kept ready for so long is ended."""

    shared: Flag = False
    """All calls use one process, of a server that keeps no state of a caller."""

    stderr: Text | None = None
    """A file to which the processes append what they write to stderr."""


def why_without_processes(written: ProcessSettings, transport: str) -> str | None:
    """Return the reason why declared keys have no effect; None if all have one, or none is declared."""
    keys = sorted(ProcessSettings.model_fields.keys() & written.model_fields_set)
    if transport != "stdio" and keys:
        return f"{', '.join(keys)}: only for stdio servers; the gateway starts no process of this one"
    if written.warm > written.max_processes and not written.shared:
        limit = written.max_processes
        return f"warm: {written.warm} is more than max_processes ({limit}); lower it or raise max_processes"
    return None
