"""The program of a worker of `serve --workers N`, run by its path.

It imports the package from where the parent found it, and nothing from the working directory before the standard
library (`python -P`), which the parent had loaded before the working directory came onto its path.
"""

import signal
import sys
from pathlib import Path

if __name__ == "__main__":
    # Sent to the whole process group; the parent acts on them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.path.insert(0, str(Path(__file__).parents[2]))
    import pallas_gateway  # noqa: F401  before the path changes

    sys.path.append(sys.path.pop(0))
    from pallas_gateway.cli.worker import main

    main()
