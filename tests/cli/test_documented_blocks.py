"""Every block of code in README.md and docs/ is checked here by its language, or run by a test that is named here."""

import ast
import importlib.util
import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, override

import pytest
import yaml
from sqlalchemy import create_engine, text

from pallas_gateway.shared.database import tables
from tests.support.commands import Command, Ran
from tests.support.documents import ROOT, pages
from tests.support_programs import program

BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL)
AGENTS_FILE = {"name", "agents", "gateway", "host", "registry_port"}
ENGINE_FILE = "# fastagent.config.yaml"
KEYS = re.findall(r"^(\w+)=…", pages()["docs/operate/providers.md"], re.MULTILINE)
"""Of the providers."""
RUN_BY = {
    ("docs/develop/README.md", "diff"): ("tests/deploy/test_worked_examples.py", 8),
    ("docs/develop/door.md", "python"): ("tests/e2e/test_plain_text_door.py", 2),
    ("docs/first-hour.md", "python"): ("tests/example/test_first_hour.py", 1),
    ("docs/first-hour.md", "yaml"): ("tests/example/test_first_hour.py", 2),
    ("docs/operate/company.md", "yaml"): ("tests/cli/test_company_document.py", 3),
    ("docs/operate/deploy.md", "nginx"): ("tests/deploy/test_deploy_document.py", 1),
    ("docs/operate/deploy.md", "sh"): ("tests/deploy/test_deploy_document.py", 2),
    ("docs/operate/deploy.md", "yaml"): ("tests/deploy/test_deploy_document.py", 3),
    ("docs/operate/observability.md", "promql"): ("tests/unit/telemetry/test_metrics_document.py", 1),
    ("docs/operate/upgrading.md", "console"): ("tests/deploy/test_backups.py", 10),
    ("docs/use/agents-as-data.md", "sh"): ("tests/e2e/test_documented_requests.py", 2),
    ("docs/use/asking.md", "python"): ("tests/e2e/test_documented_answers.py", 2),
    ("docs/use/cases.md", "python"): ("tests/e2e/test_documented_answers.py", 1),
    ("docs/use/clients.md", "python"): ("tests/e2e/test_readme.py", 2),
    ("docs/use/connect.md", "python"): ("tests/console/test_connect.py", 4),
    ("docs/use/connect.md", "ts"): ("tests/console/test_connect.py", 2),
    ("docs/use/connect.md", "sh"): ("tests/console/test_connect.py", 14),
    ("docs/use/connect.md", "json"): ("tests/console/test_connect.py", 8),
    ("docs/use/connect.md", "yaml"): ("tests/console/test_connect.py", 2),
    ("docs/use/declared-agents.md", "python"): ("tests/e2e/test_readme.py", 1),
    ("docs/use/openai-api.md", "python"): ("tests/e2e/test_documented_answers.py", 2),
}
"""Tests that run the blocks of one language of a page, or compare them with what they quote, and how many these are."""


@dataclass(frozen=True)
class Block:
    """A block of code; `line` is that of its first line."""

    document: str
    line: int
    language: str
    text: str

    @override
    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks_of(document: str, text: str) -> Iterator[Block]:
    for found in BLOCK.finditer(text):
        lines = [line.removeprefix(found["indent"]) for line in found["text"].splitlines()]
        yield Block(document, text.count("\n", 0, found.start()) + 2, found["language"], "\n".join(lines) + "\n")


BLOCKS = [block for name, text in pages().items() for block in blocks_of(name, text)]


def of(*languages: str) -> list[Block]:
    return [one for one in BLOCKS if one.language in languages and (one.document, one.language) not in RUN_BY]


def each(*languages: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("block", of(*languages), ids=str)


def test_every_block_is_checked_or_run() -> None:
    checked = {"", "yaml", "json", "python", "console", "sh", "bash", "markdown", "sql"}
    left = [str(one) for one in BLOCKS if one.language not in checked and (one.document, one.language) not in RUN_BY]
    assert left == [], "blocks of a language without a check: write one here, or name the test that runs them in RUN_BY"
    found = Counter((one.document, one.language) for one in BLOCKS)
    assert {key: found[key] for key in RUN_BY} == {key: number for key, (_, number) in RUN_BY.items()}, (
        "another number of blocks than the named test runs: have that test run each of them, then change the number"
    )


def test_every_fence_belongs_to_a_block() -> None:
    fences = {name: len(re.findall(r"^ *(?:```|~~~)", text, re.MULTILINE)) for name, text in pages().items()}
    in_blocks = Counter(one.document for one in BLOCKS)
    assert fences == {name: 2 * in_blocks[name] for name in fences}


@pytest.mark.parametrize(("document", "test"), sorted({(page, test) for (page, _), (test, _) in RUN_BY.items()}))
def test_the_tests_that_run_blocks_read_their_page(document: str, test: str) -> None:
    text = (ROOT / test).read_text()
    helpers = re.findall(r"tests\.support\.(\w+)", text)
    text += "".join((ROOT / "tests/support" / f"{name}.py").read_text() for name in helpers)
    assert document in text.replace('" / "', "/")


@each("yaml")
def test_a_configuration_passes_check(
    block: Block, run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*KEYS, *re.findall(r"\$\{(\w+)\}", block.text)):
        monkeypatch.setenv(name, "0123456789abcdef" * 4)
    content = yaml.safe_load(re.sub(r"\b[0-9a-f]+…", "ab" * 32, block.text))
    if content.keys() <= {"scrape_configs", "groups"}:
        return  # of Prometheus: tests/unit/telemetry/test_metrics_document.py tries the rules
    others: dict[str, Any] = {"name": "project", "agents": {"other": {"instruction": "You help."}}}
    if content.get("kind") == "agent":
        done = checked(others, run, folder, engine_of(named_servers(content["spec"])))
        (folder / "agent.yaml").write_text(block.text)
        done = run("apply", "-f", "agent.yaml", "--dry-run")
    elif content.keys() <= AGENTS_FILE:
        beside = [one.text for one in BLOCKS if one.document == block.document and one.text.startswith(ENGINE_FILE)]
        done = checked({"name": "project", **content}, run, folder, yaml.safe_load(beside[0]) if beside else {})
    else:
        assert content.keys() & {"mcp", "default_model"}, "a file that no rule knows"
        done = checked(others, run, folder, content)
    assert done.code == 0, f"{done.out}{done.err}"


def checked(content: dict[str, Any], run: Command, folder: Path, engine: dict[str, Any]) -> Ran:
    """Complete parts of agents.yaml and fastagent.config.yaml to a project, and check it."""
    agents = content.setdefault("agents", {"research": {}, "jarvis": {}})
    if isinstance(agents, list):
        agents = content["agents"] = {name: {} for name in agents}
    for name in {one for agent in agents.values() for key in ("depends_on", "agents") for one in agent.get(key, ())}:
        agents.setdefault(name, {})
    for agent in agents.values():
        if not agent.keys() & {"module", "instruction", "instruction_file", "card"}:
            agent["instruction"] = "You help."
        for path, written in files_of(agent):
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(written)
    if any("max_cost_per_call" in agent for agent in agents.values()):
        content.setdefault("gateway", {}).setdefault("prices", {"passthrough": {"input": 1, "output": 1}})
    servers = {one for agent in agents.values() for one in named_servers(agent)}
    servers |= set(content.get("gateway", {}).get("agents_may_use", {}).get("servers", ()))
    whole = engine_of(servers)
    whole["mcp"]["servers"] |= engine.get("mcp", {}).get("servers", {})
    (folder / "agents.yaml").write_text(yaml.safe_dump(content, allow_unicode=True))
    (folder / "fastagent.config.yaml").write_text(
        yaml.safe_dump(engine | whole | {"default_model": engine.get("default_model", "passthrough")})
    )
    return run("check")


def files_of(agent: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The files that an agent names, with what makes it start."""
    if "module" in agent:
        yield f"{agent['module'].replace('.', '/')}.py", MODULE
    if "card" in agent:
        yield agent["card"], CARD
    if "instruction_file" in agent:
        yield agent["instruction_file"], "You help."
    yield from ((pattern.replace("*", "one"), "") for pattern in agent.get("watch", ()))


CARD = "---\nname: desk\nmodel: passthrough\n---\nYou help.\n"
MODULE = """
from fast_agent import FastAgent

fast = FastAgent("one", parse_cli_args=False)


@fast.agent("orchestrate", "You help.", model="passthrough", default=True)
@fast.agent("proofreader", "You help.", model="passthrough")
async def main():
    pass
"""


def named_servers(agent: dict[str, Any]) -> set[str]:
    """The servers of an agent, with those of its policies."""
    servers = agent.get("servers", agent.get("mcpServers", ()))
    policies = (*agent.get("approve", ()), *agent.get("tool_limits", ()))
    of_policies = {one.partition("/")[0] for one in policies if "/" in one and one[0] != "*"} - {"local"}
    return {one if isinstance(one, str) else one["name"] for one in servers} | of_policies


def engine_of(servers: set[str]) -> dict[str, Any]:
    named = {name: {"url": f"https://{name}.example/mcp"} for name in sorted(servers)}
    return {"default_model": "passthrough", "mcp": {"servers": named}}


@each("json")
def test_json_is_json(block: Block) -> None:
    decoder, text = json.JSONDecoder(), block.text.replace("{…}", "{}").strip()
    while text:
        _, end = decoder.raw_decode(text)
        text = text[end:].lstrip()


@each("python")
def test_a_snippet_compiles_and_imports_what_exists(block: Block) -> None:
    tree = compile(block.text, str(block), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            assert all(hasattr(module, name.name) for name in node.names), node.module
        elif isinstance(node, ast.Import):
            assert all(importlib.util.find_spec(name.name) for name in node.names)


@each("console", "sh", "bash")
def test_targets_of_make_exist(block: Block) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^|\$ )make ([a-z-]+)", block.text, re.MULTILINE)) <= targets


@pytest.mark.needs("bash")
@each("console", "sh", "bash")
def test_commands_are_valid_for_the_shell(block: Block) -> None:
    typed = re.findall(r"^\$ ((?:.*\\\n)*.*)", block.text, re.MULTILINE)
    assert typed or block.language != "console", "no line that begins with $"
    script = "\n".join(typed) if block.language == "console" else block.text
    done = subprocess.run([program("bash"), "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("block", [one for one in of("markdown") if one.text.startswith("---")], ids=str)
def test_a_card_is_an_agent(block: Block, run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    servers = yaml.safe_load(block.text.split("---")[1])["servers"]
    (folder / "cards").mkdir()
    (folder / "cards" / "desk.md").write_text(block.text)
    (folder / "agents.yaml").write_text("name: project\nagents:\n  desk: {card: cards/desk.md}\n")
    (folder / "fastagent.config.yaml").write_text(yaml.safe_dump(engine_of(set(servers))))
    done = run("check")
    assert done.code == 0, f"{done.out}{done.err}"


@each("sql")
def test_statements_of_sqlite_run(block: Block) -> None:
    engine = create_engine("sqlite://")
    statements = [one for one in re.sub(r"--.*", "", block.text).split(";") if one.strip() and "EXTRACT" not in one]
    with engine.begin() as connection:
        tables.METADATA.create_all(connection)
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()
    assert len(statements) == 3
