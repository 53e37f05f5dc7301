#!/bin/sh
# Resolves the dependencies that pyproject.toml declares, as `pip install .` and `pip install '.[database]'` do, with old
# releases of pip. The lock files are made by uv, which resolves what pip's older resolver cannot.
#
# 23.1 is the oldest pip that starts on Python 3.12 (23.0 needs pkgutil.ImpImporter), 23.2 is what Python 3.12 came with.
set -eu
cd "$(dirname "$0")/.."

python=$(sh .ci/python.sh)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for version in 23.1.2 23.2.1; do
    "$python" -m venv "$work/$version"
    "$work/$version/bin/python" -m pip install -qq "pip==$version" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
    for package in . '.[database]' '.[threads]'; do
        if ! "$work/$version/bin/python" -m pip install --no-input --dry-run "$package" >"$work/log" 2>&1; then
            tail -n 30 "$work/log" >&2
            echo "pip $version cannot install $package" >&2
            exit 1
        fi
        if [ "$package" = . ] && grep -i '^would install.* sqlalchemy-' "$work/log" >&2; then
            echo "pip $version installs SQLAlchemy without the extra" >&2
            exit 1
        fi
        echo "pip $version resolves $package"
    done
done
