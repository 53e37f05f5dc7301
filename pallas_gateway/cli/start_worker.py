"""Run as a program, by its path: a worker of `serve --workers N`.

It runs the very package that its parent runs, wherever that was found; but nothing of the working directory before the
standard library (`python -P`), which the parent had loaded by the time it looked there.
"""

import signal
import sys
from pathlib import Path

if __name__ == "__main__":
    # These go to the whole process group. They are the parent's to act on, and not to be died of meanwhile.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.path.insert(0, str(Path(__file__).parents[2]))
    import pallas_gateway  # noqa: F401  found from now on, whatever else is on the path

    sys.path.append(sys.path.pop(0))
    from pallas_gateway.cli.worker import main

    main()
