"""Declared agents as they are made: every sentence for what may be wrong with one, and what of tools is let through."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from fast_agent.core.fastagent import FastAgent

from pallas_gateway.errors import AgentStartError
from pallas_gateway.limits import RuntimeLimits
from pallas_gateway.runtime import preparation
from pallas_gateway.runtime.downstreams.tool_filters import passes, why_withheld
from pallas_gateway.runtime.loading import make_agent
from pallas_gateway.runtime.loading.declared import make, tool_filters
from pallas_gateway.runtime.loading.make_agent import AgentFactory
from pallas_gateway.runtime.protocols import AgentSpec, Declared

HOSTED = {"http://localhost:8201/mcp": "helper"}
KNOWS = "fast-agent knows no such model or provider; write provider.model, such as openai.gpt-4o"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    preparation.prepare()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FAST_AGENT_MODEL", raising=False)
    configure(default_model="passthrough", mcp={"servers": {"argos": {"url": "https://argos.example/mcp"}}})
    return tmp_path


def configure(**settings: Any) -> None:
    Path("fastagent.config.yaml").write_text(yaml.safe_dump(settings))


def spec(declared: Declared, **peer_servers: str) -> AgentSpec:
    return AgentSpec("echo", None, 15, 3, 3, None, HOSTED, declared=declared, peer_servers=peer_servers)


def made(declared: Declared, **peer_servers: str) -> FastAgent:
    return make(spec(declared, **peer_servers), declared, None)


def wrong(declared: Declared, *, agent: str | None = None) -> list[tuple[str, str]]:
    with pytest.raises(AgentStartError) as raised:
        make(replace(spec(declared), agent=agent), declared, None)
    assert raised.value.reason == "bad_declaration"
    assert str(raised.value) == "; ".join(what for _, what in raised.value.places)
    return list(raised.value.places)


def write(name: str, content: str | bytes = "") -> Path:
    path = Path(name).absolute()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_an_instruction_is_one_default_agent_with_what_it_was_given() -> None:
    declared = Declared(instruction="You are echo.", model="playback", servers=("argos",), agents={"helper": "ask"})
    fast = made(declared, helper="http://127.0.0.1:1/mcp")
    (data,) = fast.agents.values()
    config = data["config"]
    assert (config.name, config.instruction) == ("echo", "You are echo.")
    assert (config.model, config.default) == ("playback", True)
    assert (config.servers, config.tools) == (["argos", "helper"], {"argos": ["*"], "helper": ["ask"]})


def test_a_model_asks_the_caller_only_where_that_is_declared() -> None:
    for declared in (Declared(instruction="You are echo."), Declared(instruction="You are echo.", human_input=True)):
        (data,) = made(declared).agents.values()
        assert data["config"].human_input is declared.human_input


@pytest.mark.parametrize(
    "text", ["{folder}/secret.txt", "secret.txt", "file://{folder}/secret.txt", "http://127.0.0.1:9/"]
)
def test_an_instruction_that_looks_like_a_path_or_a_url_is_only_a_text(text: str, folder: Path) -> None:
    write("secret.txt", "secret")
    text = text.format(folder=folder)
    (data,) = made(Declared(instruction=text)).agents.values()
    assert data["config"].instruction == text


def test_settings_come_from_the_file_that_is_named(folder: Path) -> None:
    named = write("more/other.yaml", yaml.safe_dump({"mcp": {"servers": {"other": {"url": "https://o.example/mcp"}}}}))
    declared = Declared(instruction="You are echo.", model="passthrough", servers=("other",))
    assert make(spec(declared), declared, named).config_path == str(named)
    assert wrong(declared)[0][0] == "servers.0"  # those of the working directory know no such server
    assert folder == Path.cwd()


def test_a_model_may_be_a_reference() -> None:
    configure(model_references={"system": {"fast": "passthrough"}})
    assert made(Declared(instruction="hi", model="$system.fast")).agents


def test_a_file_may_begin_with_a_byte_order_mark() -> None:
    (data,) = made(Declared(instruction_file=write("a.md", b"\xef\xbb\xbf You are a.\n"))).agents.values()
    assert data["config"].instruction == "You are a."


def test_a_card_brings_its_servers_and_two_cards_may_bring_the_same() -> None:
    own = {"mcp_connect": [{"target": "https://own.example/mcp", "name": "own"}, {"target": "https://b.example/b/mcp"}]}
    for name in ("a", "b"):
        write(f"cards/{name}.yaml", yaml.safe_dump({"name": name, "default": name == "a", "servers": ["argos"], **own}))
    write("cards/notes.txt", "no card")
    fast = made(Declared(card=Path("cards").absolute()))
    assert [data["config"].servers for data in fast.agents.values()] == [["argos", "own", "b_example"]] * 2
    assert [data["config"].mcp_connect for data in fast.agents.values()] == [[], []]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "no such file: {path}"),
        (Path(), "cannot be read: Is a directory: {path}"),
        (b"\xff\xfe", "the file is not UTF-8 text; save it as UTF-8"),
        (b" \n", "the file is empty"),
    ],
    ids=["missing", "a folder", "binary", "empty"],
)
def test_a_file_that_cannot_be_an_instruction_is_told(content: bytes | Path | None, says: str) -> None:
    path = write("a.md", content) if isinstance(content, bytes) else (content or Path("a.md")).absolute()
    assert wrong(Declared(instruction_file=path)) == [("instruction_file", says.format(path=path))]


def test_everything_that_is_wrong_with_an_instruction_comes_at_once() -> None:
    declared = Declared(
        instruction="{{url:http://127.0.0.1:9/x}}",
        model="nobody.knows",
        servers=("argos", "agros", "helper", "zzz"),
        agents={"away": "send_message"},
    )
    where, what = zip(*wrong(declared), strict=True)
    assert where == ("instruction", "servers.1", "servers.2", "servers.3", "agents.0", "model")
    assert what[0].startswith("Could not read URL template http://127.0.0.1:9/x")
    assert what[1:] == (
        "no server 'agros' under mcp.servers of fastagent.config.yaml (did you mean 'argos'?)",
        "no server 'helper'; to call the agent of that name, list it under agents",
        "no server 'zzz' under mcp.servers of fastagent.config.yaml",
        "agent 'away' has no port; with --agent it is reached at its own",
        f"model 'nobody.knows' cannot be used: {KNOWS}",
    )


def test_a_model_reference_that_leads_nowhere_is_not_the_default_model() -> None:
    (where, what), *more = wrong(Declared(instruction="hi", model="$system.none"))
    assert (where, more) == ("model", [])
    assert what.startswith("model '$system.none' cannot be used: Model reference '$system.none' could not be resolved")


def test_no_model_at_all_is_told() -> None:
    configure()
    says = "no model is configured; set it here, or `default_model` in fastagent.config.yaml"
    assert wrong(Declared(instruction="hi")) == [("model", says)]


@pytest.mark.parametrize("declared", [Declared(instruction="hi"), Declared(card=Path("a.md"))])
def test_a_default_model_that_cannot_be_used_is_told_with_its_key_in_fast_agents_file(declared: Declared) -> None:
    write("a.md", MARKDOWN.format("servers: []"))
    configure(default_model="antropic.claude")
    with pytest.raises(AgentStartError) as raised:
        made(declared)
    ((key, what),) = raised.value.settings
    assert (key, raised.value.places) == ("default_model", ())
    assert what.startswith("model 'antropic.claude' cannot be used: fast-agent knows no provider 'antropic' (did you ")
    assert str(raised.value) == f"in default_model of fastagent.config.yaml, {what}"


def test_settings_that_are_no_yaml_are_told() -> None:
    Path("fastagent.config.yaml").write_text("mcp: [")
    with pytest.raises(AgentStartError, match="agent 'echo' failed to start: ") as raised:
        made(Declared(instruction="hi"))
    assert (raised.value.reason, raised.value.places) == ("start_failed", ())


MARKDOWN = "---\nname: a\n{}\n---\nYou are a.\n"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.md", "You are a.", "AgentCard markdown files must include frontmatter: Missing frontmatter in {path}"),
        ("a.txt", "You are a.", "Unsupported AgentCard file extension: {path}"),
        ("a.yaml", "- a\n", "AgentCard YAML must be a mapping in {path}"),
        ("a.md", MARKDOWN.format("foo: 1"), "Unsupported fields for type 'agent' in {path}: Unknown fields: foo"),
        ("a.md", MARKDOWN.format("tool_only: true"), "card '{path}' defines no agent to serve"),
        (
            "a.md",
            MARKDOWN.format("servers: [agros]"),
            "agent 'a': no server 'agros' under mcp.servers of fastagent.config.yaml (did you mean 'argos'?)",
        ),
        (
            "a.md",
            MARKDOWN.format("servers: [helper]"),
            "agent 'a': no server 'helper'; to call the agent of that name, list it under agents",
        ),
        ("a.md", MARKDOWN.format("model: nobody.knows"), f"agent 'a': model 'nobody.knows' cannot be used: {KNOWS}"),
        (
            "a.md",
            MARKDOWN.format("mcp_connect: [{target: 'https://x.example/mcp', name: argos}]"),
            "agent 'a': mcp_connect: there is another server 'argos'; give this one another name",
        ),
    ],
)
def test_what_is_wrong_with_a_card_is_told(name: str, content: str, says: str) -> None:
    path = write(name, content)
    assert wrong(Declared(card=path)) == [("card", says.format(path=path))]


def test_a_card_that_is_not_there_and_a_folder_without_one_are_told(folder: Path) -> None:
    assert wrong(Declared(card=folder / "no.md")) == [("card", f"no such file or folder: {folder / 'no.md'}")]
    (folder / "none").mkdir()
    assert wrong(Declared(card=folder / "none")) == [("card", f"card '{folder / 'none'}' defines no agent to serve")]


def test_of_several_cards_one_must_be_chosen_unless_it_is_the_root() -> None:
    for name in ("a", "b"):
        write(f"cards/{name}.yaml", f"name: {name}\n")
    cards = Path("cards").absolute()
    says = f"card '{cards}' defines several agents (a and b) and marks none as the default"
    choose = "choose one with `agents.echo.agent` in agents.yaml (a or b)"
    assert wrong(Declared(card=cards)) == [("card", f"{says}; {choose}")]
    says = f"card '{cards}' defines no agent 'bb' (did you mean 'b'?); it has a and b"
    assert wrong(Declared(card=cards), agent="bb") == [("agent", says)]
    write("cards/b.yaml", "name: b\nagents: [a]\n")
    assert sorted(made(Declared(card=cards)).agents) == ["a", "b"]


async def test_one_that_is_wrong_is_worth_another_try_once_a_file_behind_it_is_another(folder: Path) -> None:
    declared = Declared(instruction_file=folder / "a.md")
    with pytest.raises(AgentStartError) as raised:
        await AgentFactory(None).make(spec(declared))
    assert not raised.value.may_be_mended()
    write("a.md", "You are a.")
    assert raised.value.may_be_mended()


async def test_one_that_was_made_and_could_not_start_is_worth_another_try_after_a_change(folder: Path) -> None:
    declared = Declared(card=folder / "cards")
    write("cards/a.yaml", "name: a\n")
    failure = AgentStartError("no key")
    AgentFactory(None).start_failed(spec(declared), failure)
    assert not failure.may_be_mended()
    write("cards/b.yaml", "name: b\n")
    assert failure.may_be_mended()


async def test_one_that_takes_too_long_to_be_made_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(make_agent, "make", lambda *_: released.wait(20))
    with pytest.raises(AgentStartError, match="agent 'echo' is still being made after 0 s"):
        await AgentFactory(None, limits=RuntimeLimits(making_seconds=0.01)).make(spec(Declared(instruction="hi")))
    released.set()


@pytest.mark.parametrize(
    ("declared", "filters"),
    [
        (Declared(servers=("a", "b")), {"a": ["*"], "b": ["*"]}),
        (Declared(servers=("a", "b"), tools=("a__x", "a__y_*")), {"a": ["x", "y_*"], "b": []}),
        (Declared(servers=("a",), tools=()), {"a": []}),
        (Declared(agents={"a": "ask"}), {"a": ["ask"]}),
        (Declared(agents={"a": "ask"}, tools=("a__get_health",)), {"a": ["get_health", "ask"]}),
        (Declared(servers=("a",), agents={"a": "ask"}), {"a": ["*", "ask"]}),
        (Declared(servers=("a__b", "a"), tools=("a__b__x",)), {"a": ["b__x"]}),
    ],
)
def test_allowed_tools_are_filters_of_every_server(declared: Declared, filters: dict[str, list[str]]) -> None:
    assert tool_filters(declared) == filters


@pytest.mark.parametrize(
    ("tool", "is_let_through"),
    [("a__x", True), ("a__y_1", True), ("a__z", False), ("b__x", False), ("c__x", True), ("x", True)],
)
def test_a_tool_passes_if_a_pattern_of_its_server_matches_or_its_server_has_no_filter(
    tool: str, is_let_through: bool
) -> None:
    assert passes({"a": ["x", "y_*"], "b": []}, tool) is is_let_through


class OneTool:
    """An agent with one listed tool `word` that its filters seem to keep from it: a function of its own."""

    config: Any
    aggregator: Any
    listed: Any

    def __init__(self, server: str | None) -> None:
        tool = type("Tool", (), {"name": "word"})
        self.config = type("Config", (), {"tools": {"a": []}})
        self.listed = type("Tools", (), {"tools": [tool]})
        found = type("Found", (), {"server_name": server, "local_name": "word"})
        names = {"resolve_tool_name": lambda _, name: found, "server_display_name": lambda _, name: name}
        self.aggregator = type("Aggregator", (), names)()

    async def list_tools(self) -> Any:
        return self.listed


@pytest.mark.parametrize(("server", "name"), [("a", "word"), (None, "anything")])
async def test_functions_of_the_agent_itself_are_not_held_back(server: str | None, name: str) -> None:
    assert await why_withheld(cast("Any", OneTool(server)), name) is None
