#!/bin/sh
# One box: the program to /opt/pallas-gateway, the unit to systemd. Run as root from the root of this repository, again
# after each update. Your project is at /srv/pallas.
set -eu

deploy/install.sh "${ROOT-}/opt/pallas-gateway"

install -d -m 755 "${ROOT-}/srv/pallas" "${ROOT-}/etc/systemd/system"
install -d -m 700 "${ROOT-}/etc/pallas-gateway"
install -m 644 deploy/systemd/pallas-gateway.service "${ROOT-}/etc/systemd/system/"

systemctl daemon-reload
systemctl enable pallas-gateway
