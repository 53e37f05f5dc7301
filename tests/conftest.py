"""What holds for every test."""

from __future__ import annotations

import gc
import signal
import sys
from typing import TYPE_CHECKING

import httpx
import httpx2
import pytest
from hypothesis import settings

from pallas_gateway import composition
from tests.support.fair_time import use_fair_time
from tests.support.waiting import WAIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest_plugins = ["tests.support.costs", "tests.support.tiers", "tests.support.progress"]
composition.use_changes()
use_fair_time()
settings.register_profile("steady", derandomize=True, deadline=None, database=None)
settings.load_profile("steady")  # the same examples on every run, however busy the machine

# An answer of a gateway on this machine may be late when others are busy, and comes. The object is the default of all
# clients that name no time; those of the gateway name one.
for _default in (httpx._config.DEFAULT_TIMEOUT_CONFIG, httpx2._config.DEFAULT_TIMEOUT_CONFIG):
    _default.connect = _default.read = _default.write = _default.pool = WAIT_SECONDS

# A shell starts a background job with SIGINT ignored. Programs that tests start would inherit that, and no Ctrl-C would
# end them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

CROWD_SECONDS = 600
"""A machine that does other work beside may need minutes for what takes half a minute."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests of crowds have ample time, unless they say how long they may take."""
    for item in items:
        if item.get_closest_marker("crowd") is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(CROWD_SECONDS))


def pytest_collection() -> None:
    """Collect no garbage while hundreds of modules are imported; it took a seventh of their CPU."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Take what collecting has imported, a million objects, out of every collection of garbage that follows.

    A full one took 0.4 s, and there were dozens. What tests make is still looked through for leaks.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def every_message_fits_the_protocol() -> Iterator[None]:
    """Fail a test in which the gateway sent what the protocol's schemas do not allow; see `protocol_messages`."""
    yield
    if (messages := sys.modules.get("tests.support.protocol_messages")) is not None:
        found = messages.MISFITS.take()
        assert not found, "\n".join(found)


@pytest.fixture(autouse=True)
def empty_databases_have_their_tables_at_once() -> None:
    """Keep what the first migration of this process has made; see `kept_tables`."""
    if "pallas_gateway.shared.database.migrating" in sys.modules:
        from tests.support import kept_tables  # noqa: PLC0415  loads SQLAlchemy and Alembic

        kept_tables.use()


@pytest.fixture(scope="session", autouse=True)
def no_sign_ins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Commands find no sign-ins of the person who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_trust_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """HTTP clients load an empty trust store: no test needs a real one, which costs each client 40 to 60 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SSL_CERT_FILE", raising=False)
        patch.setenv("SSL_CERT_DIR", str(tmp_path_factory.mktemp("no-certificates")))
        yield
