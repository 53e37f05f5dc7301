"""The agents and the downstreams of `agents.example.yaml`: plain fast-agent modules, to try, to read and to copy.

The gateway does not import them. They need no key: without one a scripted model answers (see `models`).
"""

import os
import sys

# fastagent.config.yaml starts the bundled downstreams with the interpreter of the gateway.
os.environ.setdefault("PALLAS_EXAMPLE_PYTHON", sys.executable)
