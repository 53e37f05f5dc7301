#!/bin/sh
# Makes .venv: the locked dependencies, every one checked against its hash, and this package, editable.
set -eu

venv=.venv
log=$venv/setup.log
python=$(sh .ci/python.sh)
printf 'Setting up %s: %s, locked dependencies (0.7 GB; 15 seconds to some minutes, this time only), this package (editable)\n' \
    "$venv" "$("$python" --version)"

"$python" -m venv --clear "$venv"

# The lock names uv too. Installed first, it installs the rest in seconds where pip takes a minute.
sed -n '/^uv==/,/[^\\]$/p' requirements-dev.lock >"$venv/uv.lock"

install() {
    "$venv/bin/python" -m pip install -qq --require-hashes --no-deps -r "$venv/uv.lock" &&
        "$venv/bin/uv" pip install --system-certs --python "$venv/bin/python" --require-hashes --no-deps -r requirements-dev.lock
} >"$log" 2>&1

install || {
    # Where only pip is set up to reach an index, or uv has no build for the platform.
    echo 'uv could not install them, so pip does (about a minute)'
    "$venv/bin/python" -m pip install -qq --require-hashes --no-deps -r requirements-dev.lock
}
"$venv/bin/python" -m pip install -qq --no-deps --no-build-isolation --no-index --editable .
