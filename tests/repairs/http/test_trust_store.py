"""Each HTTP client reads the trust store."""

from types import ModuleType

import httpx
import httpx2
import pytest

from pallas_gateway.runtime import preparation


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_clients_share_one_context_unless_their_settings_differ(
    library: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    preparation.prepare()
    shared = library.create_ssl_context()
    assert library.create_ssl_context() is shared
    assert library.create_ssl_context(verify=False) is not shared
    monkeypatch.setenv("SSL_CERT_DIR", "/nowhere")
    assert library.create_ssl_context() is not shared
