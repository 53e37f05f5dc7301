"""A service account of Google's, and the endpoint that gives its tokens."""

import json
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

TOKEN_PATH = "/google/token"
PROJECT = "project-of-the-tests"


def write_service_account(path: Path, token_uri: str) -> Path:
    account = {
        "type": "service_account",
        "project_id": PROJECT,
        "private_key_id": "key-1",
        "private_key": _private_key(),
        "client_email": "tests@example.test",
        "client_id": "1",
        "token_uri": token_uri,
    }
    path.write_text(json.dumps(account))
    return path


@cache
def _private_key() -> str:
    key = generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
