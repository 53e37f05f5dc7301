#!/bin/sh
# Builds the sdist and the wheel into dist/, twice: both builds must be the same, byte for byte. Then installs the wheel with
# the locked dependencies in an empty environment, and has a new project answer a call. The tag is set by hand afterwards.
set -eu
cd "$(dirname "$0")/../.."

bin=$PWD/.ci/supply_chain/.venv/bin
work=$(mktemp -d)
gateway=
cleanup() {
    [ -z "$gateway" ] || kill "$gateway" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
git archive --prefix=one/ HEAD | tar -x -C "$work"
cp -R "$work/one" "$work/two"
for copy in one two; do
    (cd "$work/$copy" && "$bin/python" -m build --no-isolation --outdir "$work/$copy.dist" . >"$work/$copy.log" 2>&1) ||
        { cat "$work/$copy.log" >&2; exit 1; }
done
for built in "$work"/one.dist/*; do
    cmp "$built" "$work/two.dist/${built##*/}"
done
mkdir -p dist
rm -f dist/*.whl dist/*.tar.gz
cp "$work"/one.dist/* dist/
echo "two builds are the same:"
(cd dist && sha256sum -- *.whl *.tar.gz)

python=$(sh .ci/python.sh)
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -qq --require-hashes --no-deps -r requirements.lock
"$work/venv/bin/python" -m pip install -qq --no-deps dist/*.whl
cd "$work"
"$work/venv/bin/pallas-gateway" init project >/dev/null
cd project
port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$work/venv/bin/pallas-gateway" serve --port "$port" >"$work/serve.log" 2>&1 &
gateway=$!
tries=0
until "$work/venv/bin/pallas-gateway" health --url "http://127.0.0.1:$port" >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 30 ] && kill -0 "$gateway" 2>/dev/null || { cat "$work/serve.log" >&2; exit 1; }
    sleep 1
done
agent=$(sed -n "s/^  \([a-z]*\):\$/\1/p" agents.yaml | head -n 1)
"$work/venv/bin/pallas-gateway" call "$agent" 'Hello from the wheel' --url "http://127.0.0.1:$port"
echo "the wheel is installed, and '$agent' has answered"
