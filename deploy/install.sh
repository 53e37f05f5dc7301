#!/bin/sh
# deploy/install.sh FOLDER: the gateway in a virtual environment at FOLDER, every package from the lock and checked by its
# hash, the build backend included. Run from the root of this repository. Needs Python 3.12 or newer as python3.
set -eu

work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
# What building a wheel takes, of all that the lock of the developers has. pip refuses if something is missing.
awk '/^[^ #]/ { keep = /^(hatchling|packaging|pathspec|pluggy|tomlkit|trove-classifiers)==/ } keep' \
    requirements-dev.lock > "$work/build.lock"

python3 -m venv "$work/build"
"$work/build/bin/pip" install --no-cache-dir --require-hashes --requirement "$work/build.lock"
"$work/build/bin/pip" wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir "$work" .

python3 -m venv "$1"
"$1/bin/pip" install --no-cache-dir --require-hashes --requirement requirements.lock
"$1/bin/pip" install --no-cache-dir --no-deps --no-index --force-reinstall "$work"/*.whl
