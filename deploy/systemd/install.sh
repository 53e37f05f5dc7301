#!/bin/sh
# One box: the program to /opt/pallas-gateway, the unit to systemd. Run as root from the root of this repository, again
# after each update. Needs Python 3.12 or newer as python3. Your project is at /srv/pallas.
set -eu

python3 -m venv "${ROOT-}/opt/pallas-gateway"
"${ROOT-}/opt/pallas-gateway/bin/pip" install --require-hashes --requirement requirements.lock
"${ROOT-}/opt/pallas-gateway/bin/pip" install --no-deps .

install -d -m 755 "${ROOT-}/srv/pallas" "${ROOT-}/etc/systemd/system"
install -d -m 700 "${ROOT-}/etc/pallas-gateway"
install -m 644 deploy/systemd/pallas-gateway.service "${ROOT-}/etc/systemd/system/"

systemctl daemon-reload
systemctl enable pallas-gateway
