"""The systemd unit, as systemd itself judges it."""

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pallas_gateway.client.arguments import UsageError
from pallas_gateway.config.model.deployment import GatewaySettings
from pallas_gateway.config.problems import ConfigurationError
from pallas_gateway.limits import LifeLimits, RuntimeLimits
from pallas_gateway.process.hypercorn_server import TlsError
from pallas_gateway.process.sockets import BindError
from pallas_gateway.shared.database.errors import DatabaseSchemaError
from tests.deploy.adapting import adapted, shipped
from tests.support_programs import program

UNIT = "systemd/pallas-gateway.service"
MOST_EXPOSURE = 3.0
LEAVING_SECONDS = 30  # what agents get to leave in


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that is there."""
    path = tmp_path / "pallas-gateway.service"
    path.write_text(adapted(UNIT, {"/opt/pallas-gateway/bin/pallas-gateway": sys.executable}))
    return path


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [program("systemd-analyze"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.needs("systemd-analyze")
def test_systemd_finds_nothing_wrong_with_the_unit(unit: Path) -> None:
    done = analyze("verify", "--man=no", str(unit))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.needs("systemd-analyze")
def test_the_unit_is_exposed_to_little(unit: Path) -> None:
    done = analyze("security", "--offline=true", "--no-pager", f"--threshold={MOST_EXPOSURE * 10:.0f}", str(unit))
    assert done.returncode == 0, done.stdout
    exposure = float(done.stdout.partition("exposure level for pallas-gateway.service: ")[2].split()[0])
    assert exposure < MOST_EXPOSURE


def test_the_gateway_may_write_the_audit_log_of_the_document() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operate" / "audit.md").read_text()
    [example] = re.findall(r"^  audit_log: (\S+)", page, re.MULTILINE)
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.read_string(shipped(UNIT))
    assert Path(example).parent == Path("/var/log", parser["Service"]["LogsDirectory"])
    assert parser["Service"]["LogsDirectoryMode"] == "0700"


def test_the_unit_is_not_started_again_after_an_error_that_only_an_operator_mends() -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.read_string(shipped(UNIT))
    codes = {error.exit_code for error in (ConfigurationError, TlsError, DatabaseSchemaError, UsageError)}
    assert codes == {int(parser["Service"]["RestartPreventExitStatus"])}
    assert BindError.exit_code not in codes


def test_what_the_unit_waits_is_longer_than_what_the_gateway_takes() -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.read_string(shipped(UNIT))
    service = parser["Service"]
    assert float(service["TimeoutStopSec"]) > GatewaySettings().drain_seconds + LEAVING_SECONDS
    assert float(service["TimeoutStartSec"]) > LifeLimits().dependency_seconds + 2 * RuntimeLimits().import_seconds
    assert (service["Type"], service["KillMode"]) == ("notify", "mixed")
