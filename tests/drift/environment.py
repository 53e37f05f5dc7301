"""The environment of `make drift`: the newest version of everything that the gateway and its tests depend on."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv" / "drift"
PYTHON = FOLDER / "bin" / "python"
FAST_AGENT = "fast-agent-mcp"
_LOCK = "requirements-dev.lock"
_UV = Path(sys.executable).with_name("uv")
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[\S+\])?==([^\s;\\]+)", re.MULTILINE)
_NOT_TO_BE_HAD = re.compile(r"only ([A-Za-z0-9._-]+)[<>=!]\S* is available and \S+ depends on \1[<>=!]")


class NotInstalledError(Exception):
    """The versions cannot be installed together; the message is the installer's."""


def install(fast_agent: str | None = None) -> None:
    """Make the environment, and print how it differs from the lock.

    Exact versions in pyproject.toml give way to the newest. Where a library requires a version of another that the
    index does not have, the newest that it has is taken.

    Raises:
        NotInstalledError: the versions contradict each other in another way.
    """
    _uv("venv", "--quiet", "--clear", "--python", sys.executable, str(FOLDER))
    pinned = pins((ROOT / "pyproject.toml").read_text())
    overrides = {name: f"{name}=={_newest(name)}" for name in pinned}
    if fast_agent:
        overrides[FAST_AGENT] = f"{FAST_AGENT}=={fast_agent}"
    print(f"== installing {', '.join(overrides.values())} and what they require", flush=True)
    while refusal := _refusal(overrides):
        missing = not_to_be_had(refusal) - overrides.keys()
        if not missing:
            raise NotInstalledError(refusal)
        overrides |= {name: name for name in missing}
        print(f"the index lacks what is required of {', '.join(sorted(missing))}; the newest there is, is taken")
    locked, installed = versions((ROOT / _LOCK).read_text()), versions(_uv("pip", "freeze", "--python", str(PYTHON)))
    print("\n".join(differences(locked, installed)) or "as in the lock")


def pins(pyproject: str) -> list[str]:
    """The names of the dependencies of which pyproject.toml takes one version."""
    declared = tomllib.loads(pyproject)["project"]["dependencies"]
    return [match[1] for one in declared if (match := _PINNED.match(one))]


def not_to_be_had(refusal: str) -> set[str]:
    """The libraries of which uv says that the index has no version that another library requires."""
    return set(_NOT_TO_BE_HAD.findall(" ".join(refusal.split())))


def versions(lock: str) -> dict[str, str]:
    return {name.lower(): version for name, version in _PINNED.findall(lock)}


def differences(locked: dict[str, str], installed: dict[str, str]) -> list[str]:
    """One line for each library whose version is not the locked one."""
    return [
        f"{name} {locked.get(name, '(not locked)')} -> {version}"
        for name, version in sorted(installed.items())
        if locked.get(name) != version
    ]


def _newest(name: str) -> str:
    return versions(_uv("pip", "compile", "--quiet", "--system-certs", "--no-deps", "--no-header", "-", given=name))[
        name
    ]


def _refusal(overrides: dict[str, str]) -> str | None:
    """Install; returns uv's message if that is impossible."""
    FOLDER.joinpath("overrides.txt").write_text("\n".join(overrides.values()))
    more = ("--upgrade", "--override", str(FOLDER / "overrides.txt"), "--group", "dev", "--editable", ".[threads]")
    try:
        _uv("pip", "install", "--quiet", "--system-certs", "--python", str(PYTHON), *more)
    except NotInstalledError as error:
        return str(error)
    return None


def _uv(*arguments: str, given: str | None = None) -> str:
    command = [str(_UV), *arguments]
    ran = subprocess.run(command, cwd=ROOT, input=given, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise NotInstalledError(ran.stderr or ran.stdout)
    return ran.stdout
