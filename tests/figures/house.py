"""`python -m tests.figures.house`: lines and modules of the gateway by class, from its folders. Figures, no bounds.

It also runs in a worktree of 91736d5, where repairs and fast paths stood among the product.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pallas_gateway"
PRODUCT, ADAPTERS, REPAIRS, FAST_PATHS = "product", "adapters", "repairs", "fast paths"
OTHERS, MECHANISM = "conveniences, example", "registry of changes"
CLASSES = (PRODUCT, ADAPTERS, REPAIRS, FAST_PATHS, MECHANISM, OTHERS)
_FOLDERS = {
    "process/http_connections/": ADAPTERS,
    "repairs/": REPAIRS,
    "fast_paths/": FAST_PATHS,
    "changes/": MECHANISM,
    "client/": OTHERS,
    "features/console/": OTHERS,
    "example/": OTHERS,
    "runtime/llm/warm_up.py": FAST_PATHS,
    "telemetry/exposition.py": FAST_PATHS,
}
_UNSORTED_BEFORE = {
    "runtime/llm/": REPAIRS,
    "runtime/llm/requests.py": PRODUCT,
    "runtime/llm/client_cache.py": FAST_PATHS,
    "runtime/llm/sockets.py": FAST_PATHS,
    "runtime/compat/": REPAIRS,
    "runtime/patches.py": REPAIRS,
    "runtime/downstreams/connections/connecting.py": REPAIRS,
    "runtime/downstreams/shutdown.py": REPAIRS,
    "runtime/downstreams/unused_listings.py": REPAIRS,
    "runtime/fast_paths/": FAST_PATHS,
    "runtime/settings/provider_addresses.py": REPAIRS,
    "web/guards.py": REPAIRS,
}
"""Modules of 91736d5 that today's folders do not sort, each by the larger part of it, and where it stood."""
_COMMANDS_BEFORE = {
    "cli/": OTHERS,
    **dict.fromkeys(
        (f"cli/{name}.py" for name in ("app", "apply", "check", "commands", "export", "exposure")), PRODUCT
    ),
    **dict.fromkeys((f"cli/{name}.py" for name in ("init", "inspection", "online", "project", "schema")), PRODUCT),
    **dict.fromkeys((f"cli/{name}.py" for name in ("serve", "start_worker", "token", "worker", "workers")), PRODUCT),
}
_BEFORE = {} if (PACKAGE / "client").is_dir() else {**_UNSORTED_BEFORE, **_COMMANDS_BEFORE}
_SORTED = {**_FOLDERS, **_BEFORE}


def class_of(module: str) -> str:
    """The class of a module, named by its path in the package: that of the longest path that it begins with."""
    return _SORTED[max(known)] if (known := [path for path in _SORTED if module.startswith(path)]) else PRODUCT


def lines(file: Path) -> int:
    return len(file.read_text().splitlines())


def main() -> None:
    """Print the tables."""
    files = {file.relative_to(PACKAGE).as_posix(): lines(file) for file in sorted(PACKAGE.rglob("*.py"))}
    by_class, by_folder, modules = Counter[str](), Counter[str](), Counter[str]()
    for module, length in files.items():
        by_class[class_of(module)] += length
        by_folder[module.partition("/")[0] + "/" if "/" in module else "the package itself"] += length
        if not module.endswith("__init__.py") or length > 1:
            modules[class_of(module)] += 1
    print("| | lines | modules |", "|---|---|---|", sep="\n")
    for name in CLASSES:
        print(f"| {name} | {by_class[name]:,} | {modules[name]} |")
    print(f"| **the package** | {by_class.total():,} | {modules.total()} |")
    runtime = Counter[str]()
    for module, length in files.items():
        if module.startswith("runtime/"):
            runtime[class_of(module)] += length
    print(f"\nof `runtime/` is product: {runtime[PRODUCT]:,} of {runtime.total():,} lines")
    own = (file for file in (ROOT / "tests").rglob("*.py") if not {".venv", "node_modules"} & {*file.parts})
    tests = sum(map(lines, own))
    print(f"tests: {tests:,} lines\n")
    print("| folder | lines |", "|---|---|", sep="\n")
    print("\n".join(f"| `{folder}` | {length:,} |" for folder, length in sorted(by_folder.items())))


if __name__ == "__main__":
    main()
