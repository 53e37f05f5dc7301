#!/bin/sh
# Makes .venv here: release 0.1.0, its wheel built from the commit of the release, with its locked dependencies, every one
# checked against its hash. In a clone without that commit (a shallow one) .venv has no Python, and the test is skipped.
set -eu
cd "$(dirname "$0")"

commit=6460b0a4a0215dafbd6883f73219c1e2363294e0
bin=$PWD/../../.venv/bin
rm -rf .venv
mkdir .venv
if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
    echo "This clone lacks release 0.1.0 ($commit): fetch it, delete $(basename "$PWD")/.venv, and run this again"
    exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git -C ../.. archive --output "$work/release.tar" "$commit"
mkdir "$work/source"
tar -x -f "$work/release.tar" -C "$work/source"
"$bin/python" -m venv .venv
"$bin/uv" pip install --system-certs --quiet --python .venv/bin/python --require-hashes --no-deps -r "$work/source/requirements.lock" ||
    .venv/bin/python -m pip install -qq --require-hashes --no-deps -r "$work/source/requirements.lock"
(cd "$work/source" && "$bin/python" -m hatchling build --target wheel --directory "$work" >/dev/null 2>"$work/log") ||
    { cat "$work/log" >&2; exit 1; }
.venv/bin/python -m pip install -qq --no-deps --no-index "$work"/*.whl
cp "$work/source/tests/support/patient_gateway.py" .venv/ # which starts it as the tests start gateways
