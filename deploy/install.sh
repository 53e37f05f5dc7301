#!/bin/sh
# deploy/install.sh FOLDER: the gateway in a virtual environment at FOLDER, every package from the lock and checked by its
# hash, the build backend and the extra `database` included. Run from the root of this repository. .ci/python.sh finds a
# Python from 3.12 on; PYTHON=/path/to/python3.12 names one.
set -eu

# A Python that uv has to fetch goes into FOLDER: services often cannot read home directories.
case $1 in /*) folder=$1 ;; *) folder=$PWD/$1 ;; esac
export UV_PYTHON_INSTALL_DIR="${UV_PYTHON_INSTALL_DIR:-$folder/python}"
python=$(sh .ci/python.sh)

work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
# What building a wheel takes, of all that the lock of the developers has. The build fails if something is missing.
awk '/^[^ #]/ { keep = /^(hatchling|packaging|pathspec|pluggy|tomlkit|trove-classifiers)==/ } keep' \
    requirements-dev.lock > "$work/build.lock"

"$python" -m venv "$work/build"
"$work/build/bin/pip" install --no-cache-dir --require-hashes --no-deps --requirement "$work/build.lock"
"$work/build/bin/pip" wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir "$work" .

"$python" -m venv "$folder"
"$folder/bin/pip" install --no-cache-dir --require-hashes --no-deps --requirement requirements.lock
"$folder/bin/pip" install --no-cache-dir --no-deps --no-index --force-reinstall "$work"/*.whl

case $python in
"$folder"/*) ;;
/home/* | /root/*)
    echo "warning: $folder uses $python, which the systemd unit cannot read (ProtectHome=yes). For the unit," \
        "name a Python outside of home directories: PYTHON=/path/to/python3.12 deploy/install.sh $1" >&2
    ;;
esac
