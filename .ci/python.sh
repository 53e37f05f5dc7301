#!/bin/sh
# Prints the path of a Python >= 3.12 that can make a virtual environment. Nothing else goes to stdout.
#
# Order: $PYTHON if it is set, what is on PATH, pyenv's versions (newest first), one that uv provides. Every candidate is
# executed: a pyenv shim is on PATH for each installed version and fails unless that version is switched on.
set -u

usable() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 12) <= sys.version_info[:2] < (3, 16))' >/dev/null 2>&1
}

# "/usr/bin/python3 (Python 3.11.2)", or that it does not start.
described() {
    version=$("$1" --version 2>/dev/null) || version='does not start'
    echo "$1 ($version)"
}

# Resolves shims and links, so that the answer does not depend on where it is used.
found() {
    "$1" -c 'import sys; print(sys.executable)'
    exit 0
}

if [ -n "${PYTHON:-}" ]; then
    usable "$PYTHON" && found "$PYTHON"
    echo "PYTHON=$(described "$PYTHON") cannot be used: Python 3.12 to 3.15 with venv and ensurepip is required" >&2
    exit 1
fi

for name in python3.14 python3.13 python3.12 python3; do
    usable "$name" && found "$name"
done

pyenv_versions="${PYENV_ROOT:-${HOME:-/}/.pyenv}/versions"
for version in $(ls "$pyenv_versions" 2>/dev/null | sort -t . -k 1,1nr -k 2,2nr -k 3,3nr); do
    usable "$pyenv_versions/$version/bin/python" && found "$pyenv_versions/$version/bin/python"
done

unusable=$(command -v python3) && echo "$(described "$unusable") cannot be used, so uv looks for Python 3.13" >&2

# uv downloads a Python where the network lets it. It is taken from PATH, else from a throw-away environment.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
uv=$(command -v uv) || {
    uv="$scratch/bin/uv"
    python3 -m venv "$scratch" >/dev/null 2>&1 && "$scratch/bin/python" -m pip install --quiet --quiet uv >&2
}
if [ -x "$uv" ] && "$uv" python install 3.13 >&2; then
    python=$("$uv" python find 3.13) && usable "$python" && found "$python"
fi

echo "No Python 3.12 to 3.15 with venv and ensurepip found${unusable:+, only $(described "$unusable")}." \
    "Install one, or name it: PYTHON=/path/to/python3.12 make setup" >&2
exit 1
