"""A certificate of one's own, for gateways that serve HTTPS."""

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

TLS_FILES = {"certfile": "cert.pem", "keyfile": "key.pem"}  # for `gateway.tls`


def write_certificate(path: Path, *, days: float = 90) -> ssl.SSLContext:
    """Write `TLS_FILES`, self-signed for `localhost` and its address; returns a context that trusts it.

    It expires after `days`, or expired that long ago if they are negative.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=90))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    (path / TLS_FILES["certfile"]).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (path / TLS_FILES["keyfile"]).write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return ssl.create_default_context(cafile=str(path / TLS_FILES["certfile"]))
