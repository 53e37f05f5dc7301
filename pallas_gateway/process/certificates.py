"""The end of the configured certificate: clients refuse the gateway after it, and no request fails before it."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.telemetry.metrics import Metrics

SETTING = "gateway.tls.certfile"
RENEWAL = timedelta(days=14)
"""A certificate that ends earlier has to be renewed; programs that renew by themselves do so a month before its end."""
_log = logging.getLogger("pallas.server")


def end_of(configuration: Configuration) -> datetime | None:
    """Return when the certificate expires, or one of its issuers in the same file; None if there is no readable one."""
    if configuration.tls_files is None:
        return None
    from cryptography import x509  # noqa: PLC0415  a hundred modules, for gateways with `tls`

    certfile, _ = configuration.tls_files
    try:
        certificates = x509.load_pem_x509_certificates(certfile.read_bytes())
    except (OSError, ValueError):  # `check_tls` reports the reason
        return None
    return min(one.not_valid_after_utc for one in certificates)


def warning_of(configuration: Configuration) -> str | None:
    """Return what is wrong with the time left; None if it is long enough."""
    end, now = end_of(configuration), datetime.now(UTC)
    if end is None or end - now > RENEWAL:
        return None
    day = end.strftime("%Y-%m-%d %H:%M UTC")
    if end <= now:
        return f"the certificate expired at {day}, and clients refuse it; renew it"
    return f"the certificate expires at {day}, in {(end - now) / timedelta(days=1):.1f} days; renew it"


def warn_of_end(configuration: Configuration) -> None:
    """Log a certificate that has expired or soon will."""
    if configuration.tls_files is not None and (why := warning_of(configuration)) is not None:
        # Within 14 days, or it has expired.
        _log.warning("certificate expires", extra={"why": why, "file": str(configuration.tls_files[0])})


def measure_end(configuration: Configuration, metrics: Metrics) -> None:
    """Show in the metrics when the certificate expires."""
    if (end := end_of(configuration)) is not None:
        metrics.certificate_expires.labels("gateway.tls").set(end.timestamp())
