"""`serve` in a process of its own, as patient as the gateways of `tests.support.gateway`: run by its path, with `-P`.

What gateways wait for comes late on a machine that does other work beside. Their stops wait for late
requests only with `LATE_REQUESTS` in the environment. With a first argument `start_worker` it is the program of a
worker. It imports nothing of the tests, which are not on the path.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path

PATIENCE_SECONDS = 60.0
LATE_REQUESTS = "PALLAS_TESTS_LATE_REQUESTS"
LATE = ("last_answers_seconds", "last_requests_seconds")


def be_patient() -> None:
    """Change the defaults of limits."""
    from pallas_gateway import limits  # noqa: PLC0415  a worker ignores signals first

    counting = dict.fromkeys(("postgresql", "sqlite"), PATIENCE_SECONDS)
    for part, defaults in (
        (limits.ConnectionLimits, {} if LATE_REQUESTS in os.environ else dict.fromkeys(LATE, 0.0)),
        (limits.DatabaseLimits, {"count_seconds": counting, "use_seconds": PATIENCE_SECONDS}),
        (limits.HealthLimits, dict.fromkeys(("probe_seconds", "preflight_seconds"), PATIENCE_SECONDS)),
        (limits.ListingLimits, {"ask_seconds": PATIENCE_SECONDS}),
        (
            limits.ProgramLimits,
            dict.fromkeys(("start_seconds", "rehearse_seconds", "list_seconds"), PATIENCE_SECONDS),
        ),
        (limits.RuntimeLimits, {"attach_seconds": PATIENCE_SECONDS}),
    ):
        known = part.__init__.__kwdefaults__
        assert known is not None
        assert defaults.keys() <= known.keys()
        known.update(defaults)


def start_worker() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    be_patient()
    import pallas_gateway  # noqa: PLC0415  as above
    from pallas_gateway.workers import forwarding  # noqa: PLC0415  as above

    forwarding.ASK_SECONDS = PATIENCE_SECONDS
    runpy.run_path(str(Path(pallas_gateway.__file__).parent / "cli" / "start_worker.py"), run_name="__main__")


def main() -> None:
    be_patient()
    from pallas_gateway.cli import app, workers  # noqa: PLC0415  as above

    workers.COMMAND = (sys.executable, "-P", __file__, "start_worker")  # type: ignore[assignment]  # one word more
    app.main()


if __name__ == "__main__":
    if sys.argv[1] == "start_worker":
        start_worker()
    else:
        main()
