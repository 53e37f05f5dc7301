"""Writes the console's libraries from `node_modules`: `python -m tests.console.vendor`, or `make vendor`.

The packages name each other by bare specifiers, which a browser does not resolve without an import map, and a map would
have to stand in the page as an inline script. So the specifiers are replaced by file names.
"""

import hashlib
import re
from pathlib import Path

HERE = Path(__file__).parent
VENDOR = Path(__file__).parents[2] / "pallas_gateway/features/console/static/vendor"
SUMS = VENDOR / "SHA256SUMS"
MODULES = {
    "preact": "preact/dist/preact.mjs",
    "preact/hooks": "preact/hooks/dist/hooks.mjs",
    "@preact/signals-core": "@preact/signals-core/dist/signals-core.mjs",
    "@preact/signals": "@preact/signals/dist/signals.mjs",
    "htm": "htm/dist/htm.mjs",
}
"""The file in `node_modules` of each specifier."""
_IMPORT = re.compile(r'(\bfrom|\bimport)\s*"([^"./][^"]*)"')
_SOURCE_MAP = re.compile(r"\n//# sourceMappingURL=\S+\s*\Z")


def name_of(specifier: str) -> str:
    return f"{specifier.removeprefix('@').replace('/', '-')}.js"


def browser_module(source: str) -> str:
    """Return a module whose imports are file names, without the reference to a source map."""
    named = _IMPORT.sub(lambda match: f'{match[1]}"./{name_of(match[2])}"', source)
    return _SOURCE_MAP.sub("", named).rstrip() + "\n"


def sums() -> str:
    """Return the SHA-256 of each vendored file, in the format of `sha256sum`."""
    files = sorted(path for path in VENDOR.iterdir() if path != SUMS)
    return "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)


def main() -> None:
    """Write the modules, their licences and `SHA256SUMS`."""
    for file in VENDOR.iterdir():
        file.unlink()
    packages = HERE / "node_modules"
    for specifier, path in MODULES.items():
        source = (packages / path).read_text(encoding="utf-8")
        (VENDOR / name_of(specifier)).write_text(browser_module(source), encoding="utf-8")
        package = specifier.removesuffix("/hooks")
        licence = (packages / package / "LICENSE").read_text(encoding="utf-8")
        (VENDOR / f"LICENSE-{name_of(package).removesuffix('.js')}.txt").write_text(licence, encoding="utf-8")
    SUMS.write_text(sums(), encoding="utf-8")


if __name__ == "__main__":
    main()
