"""Fixtures of the end-to-end tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def no_trust_store(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """HTTP clients load an empty trust store: nothing here speaks TLS, and a real one costs each client 20 to 40 ms."""
    empty = tmp_path_factory.mktemp("no-certificates")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", str(empty))
    return empty
