"""Compares a lock file with an export of advisories, for machines without a network: `make audit ADVISORIES=FILE`.

The export is what osv.dev offers for PyPI: a ZIP archive with a JSON document for each advisory, in the format of
https://ossf.github.io/osv-schema/. Its date is the latest `modified` in it. One older than 30 days says nothing about
what is known today, so it is refused.

Exit codes: 0 nothing found, 1 an advisory concerns a locked version, 2 the export cannot be used.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

OLDEST = timedelta(days=30)
_LOCKED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)", re.MULTILINE)


class UnusableExportError(Exception):
    """The export is no archive of advisories, or too old."""


def locked(lock: str) -> dict[str, Version]:
    """Return the version of each package of a lock file by its normalized name."""
    return {canonicalize_name(name): Version(version) for name, version in _LOCKED.findall(lock)}


def read(path: str, now: datetime) -> list[dict[str, Any]]:
    """Return the advisories of an export.

    Raises:
        UnusableExportError: it cannot be read, has no advisory, or is older than 30 days.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            advisories = [json.loads(archive.read(name)) for name in archive.namelist() if name.endswith(".json")]
        newest = max((datetime.fromisoformat(one["modified"]) for one in advisories), default=None)
    except (OSError, zipfile.BadZipFile, ValueError, KeyError, TypeError) as error:
        raise UnusableExportError(f"{path}: no export of advisories: {error}") from error
    if newest is None:
        raise UnusableExportError(f"{path}: has no advisory")
    if now - newest > OLDEST:
        raise UnusableExportError(f"{path}: its newest advisory is of {newest:%Y-%m-%d}, more than 30 days ago")
    return advisories


def findings(versions: Mapping[str, Version], advisories: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each advisory that concerns a locked version and was not withdrawn."""
    for advisory in advisories:
        if advisory.get("withdrawn"):
            continue
        for affected in advisory.get("affected", ()):
            package = affected.get("package", {})
            name = canonicalize_name(str(package.get("name", "")))
            version = versions.get(name) if package.get("ecosystem") == "PyPI" else None
            if version is not None and _concerns(version, affected):
                yield f"{name} {version}: {advisory['id']} {advisory.get('summary', '')}".rstrip()


def _concerns(version: Version, affected: Mapping[str, Any]) -> bool:
    if any(version == other for other in map(_version, affected.get("versions", ()))):
        return True
    return any(
        _is_in(version, one.get("events", ())) for one in affected.get("ranges", ()) if one.get("type") == "ECOSYSTEM"
    )


def _is_in(version: Version, events: Sequence[Mapping[str, str]]) -> bool:
    """Evaluate the events of a range in order, as the OSV schema describes."""
    is_in = False
    for event in events:
        if "introduced" in event:
            is_in = is_in or event["introduced"] == "0" or _reaches(version, event["introduced"])
        elif "fixed" in event:
            is_in = is_in and not _reaches(version, event["fixed"])
        elif "last_affected" in event:
            last = _version(event["last_affected"])
            is_in = is_in and (last is None or version <= last)
    return is_in


def _reaches(version: Version, bound: str) -> bool:
    parsed = _version(bound)
    return parsed is not None and version >= parsed


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def main(lock: str, export: str) -> int:
    with open(lock, encoding="utf-8") as file:  # noqa: PTH123  a script without imports of the project
        versions = locked(file.read())
    try:
        advisories = read(export, datetime.now(UTC))
    except UnusableExportError as error:
        print(error, file=sys.stderr)
        return 2
    found = sorted(findings(versions, advisories))
    print(*found, f"{len(versions)} packages, {len(advisories)} advisories, {len(found)} findings", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
