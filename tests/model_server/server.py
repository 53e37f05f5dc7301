"""llama.cpp's server with `tiny_model`, until stdin ends: `server.py FILE`, its URL on stdout.

The model is written to FILE.
"""

# mypy: ignore-errors
# It does not see this folder's environment.

import sys
from pathlib import Path

import xllamacpp
from tiny_model import tiny_model

if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_bytes(tiny_model())
    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_parallel = 2
    params.n_ctx = 2048
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.warmup = False
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()
