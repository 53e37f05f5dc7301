"""A log file as the gateway writes it."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pallas_gateway.telemetry.log_outputs import FileOutput
from pallas_gateway.telemetry.logs import CallFields, JsonFormatter


class Log:
    def __init__(self, path: Path) -> None:
        self._path = path

    def records(self, logger: str = "") -> list[dict[str, Any]]:
        """Those of one logger and the ones below it, or all."""
        records = [json.loads(line) for line in self._path.read_text().splitlines()]
        return [record for record in records if record["logger"].startswith(logger)]


@contextmanager
def logged(path: Path, level: int = logging.INFO) -> Iterator[Log]:
    """Write a log file as `serve` does, beside what pytest keeps."""
    handler = FileOutput(path, max_bytes=10_000_000, backups=1)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(CallFields())
    root, pallas = logging.getLogger(), logging.getLogger("pallas")
    before = root.level, pallas.level
    root.addHandler(handler)
    root.setLevel(level)
    pallas.setLevel(level)
    try:
        yield Log(path)
    finally:
        root.removeHandler(handler)
        handler.close()
        root.setLevel(before[0])
        pallas.setLevel(before[1])
