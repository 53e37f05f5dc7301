"""The agents and the downstream of `agents.example.yaml`: plain fast-agent modules, to try, to read and to copy.

Nothing here is part of the gateway, and nothing needs a key: without one a scripted model answers (see `models`).
"""

import os
import sys

# fastagent.config.yaml starts the bundled downstream with the interpreter that runs the gateway, wherever that is.
os.environ.setdefault("PALLAS_EXAMPLE_PYTHON", sys.executable)
