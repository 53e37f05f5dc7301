"""`check` finds what `serve` would stumble over, all of it at once; and where a command finds its project."""

import os
import re
import shutil
import socket
import sys
import threading
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from pallas_gateway.cli.check_project import inspect
from pallas_gateway.cli.project import make_ready, read_project
from pallas_gateway.config.loading.loader import Overrides
from pallas_gateway.limits import RuntimeLimits
from tests.support.certificates import TLS_FILES, write_certificate
from tests.support.commands import READY_SECONDS, Command, started
from tests.support.gateway import Agent, Project, module_source, write_project


def lines_of(err: str) -> list[str]:
    return err.splitlines()


def add_to(file: str, text: str) -> int:
    """Append `text` to a file; the line it stands on."""
    before = Path(file).read_text()
    Path(file).write_text(f"{before}{text}\n")
    return before.count("\n") + 1


def project_in(folder: Path, agents: Mapping[str, Agent] | None = None, **more: Any) -> Project:
    return write_project(folder, agents or {"echo": Agent()}, **more)


def line_of_module(project: Project, agent: str) -> int:
    lines = (project.path / "agents.yaml").read_text().splitlines()
    return next(number for number, line in enumerate(lines, start=1) if f"module: {project.package}.{agent}" in line)


def test_a_sound_project_is_fine(run: Command, folder: Path) -> None:
    project_in(folder, {"echo": Agent(), "other": Agent()})
    ran = run("check")
    assert (ran.code, ran.out, ran.err) == (0, "agents.yaml is fine: 2 agents (echo, other)\n", "")


def test_check_binds_nothing(run: Command, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        project_in(folder, gateway={"port": taken.getsockname()[1]})
        assert run("check").code == 0


def test_check_leaves_nothing_but_the_log_behind(run: Command, folder: Path) -> None:
    project = project_in(folder)
    before = {path.name for path in folder.iterdir()}
    run("check")
    assert {path.name for path in folder.iterdir()} == before
    assert project.package in before


def test_what_modules_print_is_no_result(run: Command, folder: Path) -> None:
    source = "print('noise')\nfrom fast_agent import FastAgent\nfast = FastAgent('x', parse_cli_args=False)\n"
    source += "@fast.agent(name='x', default=True)\nasync def x(): ...\n"
    project_in(folder, {"echo": Agent(source=source)})
    ran = run("check")
    assert (ran.code, ran.out) == (0, "agents.yaml is fine: 1 agent (echo)\n")
    assert ran.err == "noise\n"


PAST_PYTHON = """
import os, subprocess, sys

os.write(1, b"by number\\n")
sys.__stdout__.write("by the first name\\n")
subprocess.run([sys.executable, "-c", "print('by a child')"])
os.system("echo by a shell")
"""


def test_what_modules_write_past_python_is_no_result_either(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", {"echo": Agent(source=PAST_PYTHON + module_source("echo", Agent()))})
    with started(["check"], project.path) as program:
        ran = program.end(READY_SECONDS)
    assert (ran.code, ran.out) == (0, "agents.yaml is fine: 1 agent (echo)\n")
    assert sorted(lines_of(ran.err)) == ["by a child", "by a shell", "by number", "by the first name"]


def test_every_module_that_would_not_start_is_a_line(run: Command, folder: Path) -> None:
    agents = {
        "broken": Agent(source="x = 1\nraise ValueError('no key')\n"),
        "well": Agent(),
        "empty": Agent(source=""),
        "modelless": Agent(model="nobody.knows-this"),
        "agentless": Agent(source="from fast_agent import FastAgent\nfast = FastAgent('x', parse_cli_args=False)\n"),
        "missing": Agent(settings={"module": "no.such.module"}),
    }
    project = project_in(folder, agents)

    ran = run("check")

    assert (ran.code, ran.out) == (2, "")
    places = [line.split(": ", 2)[:2] for line in lines_of(ran.err)]
    assert places[:-1] == [
        [f"agents.yaml:{line_of_module(project, name)}", f"agents.{name}.module"]
        for name in ("broken", "empty", "modelless", "agentless")
    ]
    assert places[-1][1] == "agents.missing.module"
    sentences = [line.split(": ", 2)[2] for line in lines_of(ran.err)]
    assert sentences[0].endswith(f"ValueError: no key ({folder / project.package / 'broken.py'}:2)")
    assert sentences[1] == f"module '{project.package}.empty' has no FastAgent; define `fast = FastAgent(…)`"
    assert sentences[2].startswith("agent 'modelless' failed to start: ")
    assert sentences[3] == f"module '{project.package}.agentless' defines no agent to serve"
    assert sentences[4] == f"no module 'no.such.module' in {folder}, and none is installed"


@pytest.mark.parametrize(
    ("settings", "places"),
    [
        ({"approve": ["local/*", "docs/*", "destructive"]}, [(3, "approve.1"), (4, "approve.2")]),
        ({"tool_limits": {"local/*": 3, "docs/*": 2}}, [(3, "tool_limits.docs/*")]),
    ],
)
def test_policies_over_tools_of_a_providers_own_connection_are_lines(
    settings: dict[str, Any], places: list[tuple[int, str]], run: Command, folder: Path
) -> None:
    project = project_in(
        folder,
        {"user": Agent(["docs"], model="responses.gpt-4.1", settings=settings)},
        servers={"docs": {"url": "https://docs.example/mcp", "management": "provider"}},
        fastagent={"responses": {"api_key": "not-a-key", "base_url": "http://127.0.0.1:9/v1"}},
    )
    ran = run("check")

    assert (ran.code, ran.out) == (2, "")
    line = line_of_module(project, "user")
    assert [text.split(": ", 2)[:2] for text in lines_of(ran.err)] == [
        [f"agents.yaml:{line + below}", f"agents.user.{place}"] for below, place in places
    ]
    assert "'docs/*' may name tools of the server 'docs', which the model's provider runs by itself" in ran.err


def test_policies_of_modules_over_servers_that_are_not_there_are_lines(run: Command, folder: Path) -> None:
    settings = {"approve": ["note/remove_*", "notes/x", "peer/*"], "tool_limits": {"nots/*": 3, "*/y": 1}}
    project = project_in(
        folder,
        {"one": Agent(["notes"], settings=settings), "peer": Agent()},
        servers={"notes": {"url": "https://notes.example/mcp"}},
        gateway={"limits": {"rules": [{"agent": "on", "calls_at_once": 1}]}},
    )
    ran = run("check")

    said = "is of no server or agent of this project (did you mean 'notes'?)"
    line = line_of_module(project, "one")
    found = [text for text in lines_of(ran.err) if "is of no server" in text]
    assert (ran.code, [text.split(": ", 1)[1] for text in found]) == (
        2,
        [f"agents.one.approve.0: 'note/remove_*' {said}", f"agents.one.tool_limits.nots/*: 'nots/*' {said}"],
    )
    assert found[0].startswith(f"agents.yaml:{line + 2}: ")
    assert "gateway.limits.rules.0.agent: warning: no agent 'on' (did you mean 'one'?)" in ran.err


def test_prices_of_models_that_no_agent_uses_are_warnings(run: Command, folder: Path) -> None:
    price = {"input": 1, "output": 1}
    project_in(folder, gateway={"prices": {"passthrough": price, "pasthrough": price}})
    ran = run("check")
    [line] = lines_of(ran.err)
    assert ran.code == 0
    assert line.endswith("gateway.prices.pasthrough: warning: no agent uses this model (did you mean 'passthrough'?)")


def test_a_module_that_is_slow_to_import_is_named_while_it_is_waited_for_and_the_others_are_checked(
    run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    over = threading.Event()
    monkeypatch.setattr(threading, "over_for_a_test", over, raising=False)
    agents = {
        "slow": Agent(source="import threading\nthreading.over_for_a_test.wait(30)\n"),
        "broken": Agent(source="raise ValueError('no key')\n"),
    }
    project = project_in(folder, agents)
    configuration = read_project(None, Overrides()).configuration
    assert configuration is not None
    make_ready(configuration)
    found = inspect(configuration, (), limits=RuntimeLimits(import_turn_seconds=0.02, import_seconds=0.05))
    over.set()
    assert f"module '{project.package}.slow' is slow to import, waiting up to 0.05 s\n" in capsys.readouterr().err
    slow, broken = found.problems
    assert str(slow).endswith(f"agents.slow.module: module '{project.package}.slow' is still importing after 0.05 s")
    assert broken.path == "agents.broken.module"


def test_an_entry_whose_agent_is_not_clear_is_a_line_with_the_candidates_and_the_key(
    run: Command, folder: Path
) -> None:
    define = "from fast_agent import FastAgent\nagents = FastAgent('x', parse_cli_args=False)\n"
    agent = "@agents.agent(name='{}', instruction=''{})\nasync def {}(): ...\n"
    two = agent.format("one", "", "a") + agent.format("two", "", "b")
    defaults = two.replace("'')", "'', default=True)")
    agents = {
        "unmarked": Agent(source=define + two),
        "defaults": Agent(source=define + defaults),
        "wrong": Agent(source=define + two, settings={"agent": "tow"}),
        "right": Agent(source=define + defaults, settings={"agent": "two"}),
    }
    project = project_in(folder, agents)

    ran = run("check")

    assert ran.code == 2
    module = f"module '{project.package}."
    says = {
        "unmarked.module": f"{module}unmarked' defines several agents (one and two) and marks none as the default; "
        "choose one with `agents.unmarked.agent` in agents.yaml (one or two)",
        "defaults.module": f"{module}defaults' marks several agents as the default (one and two); choose one with "
        "`agents.defaults.agent` in agents.yaml (one or two)",
        "wrong.agent": f"{module}wrong' defines no agent 'tow' (did you mean 'two'?); it has one and two",
    }
    lines = (
        line_of_module(project, "unmarked"),
        line_of_module(project, "defaults"),
        line_of_module(project, "wrong") + 1,
    )
    expected = zip(lines, says.items(), strict=True)
    assert lines_of(ran.err) == [f"agents.yaml:{line}: agents.{key}: {what}" for line, (key, what) in expected]


def test_problems_of_both_files_and_of_modules_come_at_once_in_reading_order(run: Command, folder: Path) -> None:
    servers = {"tools": {"url": "http://127.0.0.1:9/mcp", "headers": {"Authorization": "Bearer ${NO_SUCH_VARIABLE}"}}}
    project = project_in(folder, {"echo": Agent(), "broken": Agent(source="")}, servers=servers)
    top = add_to("agents.yaml", "naem: test")

    ran = run("check")

    assert ran.code == 2
    module = line_of_module(project, "broken")
    fastagent = next(line for line in lines_of(ran.err) if line.startswith("fastagent"))
    assert lines_of(ran.err) == [
        f"agents.yaml:{module}: agents.broken.module: module '{project.package}.broken' has no FastAgent; "
        "define `fast = FastAgent(…)`",
        f"agents.yaml:{top}: naem: unknown key (did you mean 'name'?)",
        fastagent,
    ]
    assert fastagent.endswith(
        "mcp.servers.tools.headers.Authorization: environment variable NO_SUCH_VARIABLE is not set; "
        "set it, or write ${NO_SUCH_VARIABLE:-default}"
    )


def test_problems_of_both_files_come_at_once_when_fast_agents_cannot_be_read(run: Command, folder: Path) -> None:
    project_in(folder, gateway={"host": "0.0.0.0"})  # noqa: S104
    top = add_to("agents.yaml", "naem: test")
    broken = add_to("fastagent.config.yaml", "logger: [")
    ran = run("check")
    assert (ran.code, ran.out) == (2, "")
    *warnings, first, second = lines_of(ran.err)
    assert [": warning: " in line for line in warnings] == [True, True]
    assert first == f"agents.yaml:{top}: naem: unknown key (did you mean 'name'?)"
    assert second.startswith(f"fastagent.config.yaml:{broken + 1}: ")
    assert "not valid YAML" in second


def test_an_agent_without_a_module_and_a_broken_one_are_both_told(run: Command, folder: Path) -> None:
    project = project_in(folder, {"broken": Agent(source="")}, gateway={"per_port": True, "host": "127.0.0.1"})
    document = yaml.safe_load(Path("agents.yaml").read_text())
    document["agents"]["bare"] = {"title": "Bare"}
    Path("agents.yaml").write_text(yaml.safe_dump(document, sort_keys=False))

    ran = run("check")

    found = {line.split(": ", 2)[1]: line.split(": ", 2)[2] for line in lines_of(ran.err)}
    assert found == {
        "agents.broken.port": "is required with --per-port, which `pallas` implies",
        "agents.broken.module": f"module '{project.package}.broken' has no FastAgent; define `fast = FastAgent(…)`",
        "agents.bare": "requires a module, an instruction, an instruction_file or a card",
        "agents.bare.port": "is required with --per-port, which `pallas` implies",
    }


def test_everything_wrong_with_declared_agents_is_a_line_at_its_key(run: Command, folder: Path) -> None:
    Path("fastagent.config.yaml").write_text("default_model: passthrough\n")
    Path("idle.yaml").write_text("name: idle\n")
    Path("agents.yaml").write_text("""\
name: test
agents:
  lost:
    model: nobody.knows
    instruction_file: lost.md
    servers:
      - helper
      - nowhere
    watch: [tone.md, "tones/*.md"]
  twofold:
    instruction: You are twofold.
    module: no.such.module
  strange: {instruction: You are strange., model: generic.strange-model}
  idle:
    card: idle.yaml
    agents: [helper]
  helper: {instruction: You are helper., model: playback}
""")
    ran = run("check")
    assert (ran.code, ran.out) == (2, "")
    nowhere = "no server 'nowhere' under mcp.servers of fastagent.config.yaml"
    assert lines_of(ran.err) == [
        "agents.yaml:4: agents.lost.model: model 'nobody.knows' cannot be used: fast-agent knows no such model or "
        "provider; write provider.model, such as openai.gpt-4o",
        f"agents.yaml:5: agents.lost.instruction_file: no such file: {folder / 'lost.md'}",
        "agents.yaml:7: agents.lost.servers.0: no server 'helper'; to call the agent of that name, list it under "
        "agents",
        f"agents.yaml:8: agents.lost.servers.1: {nowhere}",
        f"agents.yaml:9: agents.lost.watch: no file to watch: {folder / 'tone.md'}",
        f"agents.yaml:9: agents.lost.watch: no file to watch: {folder / 'tones/*.md'}",
        "agents.yaml:11: agents.twofold.instruction: stands beside module; an agent has one of module, instruction, "
        "instruction_file and card",
        "agents.yaml:13: agents.strange: warning: fast-agent does not know the model 'strange-model'; it gets text "
        "only, and fast-agent's defaults for its limits. Declare `model_capabilities` to say what it can do",
        "agents.yaml:16: agents.idle.agents: warning: 'helper' is never called; name it in the `servers` of the module "
        "or card, too",
    ]


@pytest.mark.parametrize(
    ("key", "value"), [("api_key", "${NO_SUCH_VARIABLE}"), ("base_url", "${NO_SUCH_VARIABLE}"), ("base_url", " ")]
)
def test_a_provider_that_is_not_set_up_is_no_problem(run: Command, folder: Path, key: str, value: str) -> None:
    project_in(folder, fastagent={"openai": {key: value}})
    assert run("check").code == 0


def test_without_a_configuration_the_way_to_one_is_told(run: Command) -> None:
    ran = run("check")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        "agents.yaml: no such file; 'pallas-gateway init' makes a project; --config or PALLAS_AGENTS_CONFIG names "
        "another file\n"
    )


def test_a_project_without_fast_agents_file_and_without_a_model_is_told_where_to_put_one(
    run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FAST_AGENT_MODEL", raising=False)
    project = project_in(folder)
    Path("fastagent.config.yaml").unlink()
    ran = run("check")
    assert ran.code == 2
    assert lines_of(ran.err) == [
        f"agents.yaml:{line_of_module(project, 'echo')}: agents.echo.module: agent 'echo' failed to start: no model is "
        "configured; set `default_model` in fastagent.config.yaml, or `model=` on the agent",
    ]


def test_a_project_whose_agents_name_their_models_needs_no_file_of_fast_agents(run: Command, folder: Path) -> None:
    project_in(folder, {"echo": Agent(model="passthrough")})
    Path("fastagent.config.yaml").unlink()
    ran = run("check")
    assert (ran.code, ran.err) == (0, "")


def test_a_model_nobody_knows_is_a_warning_until_it_is_declared(run: Command, folder: Path) -> None:
    project = project_in(folder, {"echo": Agent(model="generic.never-heard-of-it")})
    ran = run("check")
    assert (ran.code, ran.out) == (0, "agents.yaml is fine: 1 agent (echo)\n")
    assert ran.err.startswith(
        f"agents.yaml:{line_of_module(project, 'echo')}: agents.echo: warning: fast-agent does not know the model "
        "'never-heard-of-it'; it gets text only"
    )

    add_to("fastagent.config.yaml", "model_capabilities: {vision: false}")
    ran = run("check")
    assert (ran.code, ran.err) == (0, "")


def test_a_model_that_several_agents_use_is_one_warning(run: Command, folder: Path) -> None:
    agents = {name: Agent(model="generic.claude-sonet-4-5") for name in ("one", "two", "three")}
    project = project_in(folder, agents)
    (warning,) = lines_of(run("check").err)
    assert warning == (
        f"agents.yaml:{line_of_module(project, 'one')}: agents.one: warning: fast-agent does not know the model "
        "'claude-sonet-4-5' (did you mean 'claude-sonnet-4-5'?); it gets text only, and fast-agent's defaults for its "
        "limits. Declare `model_capabilities` to say what it can do; two, three use it, too"
    )


THREE = """\
name: test
agents:
  one: {instruction: You are one.}
  two: {instruction: You are two., model: passthrough}
  three: {module: three}
"""
MODULE = module_source("three", Agent())


def three_agents(folder: Path, fastagent: str) -> None:
    (folder / "agents.yaml").write_text(THREE)
    (folder / "three.py").write_text(MODULE)
    (folder / "fastagent.config.yaml").write_text(fastagent)


@pytest.fixture
def _three() -> Generator[None]:
    """Its module is forgotten afterwards."""
    yield
    sys.modules.pop("three", None)


@pytest.mark.usefixtures("_three")
@pytest.mark.parametrize(
    ("fastagent", "problem"),
    [
        (
            "# mine\ndefault_model: antropic.claude\n",
            "2: default_model: model 'antropic.claude' cannot be used: fast-agent knows no provider 'antropic' (did "
            "you mean 'anthropic'?); models are named such as anthropic.claude-",
        ),
        (
            "default_model: sonet\n",
            "1: default_model: model 'sonet' cannot be used: fast-agent knows no such model or provider (did you mean "
            "'sonnet' or ",
        ),
        (
            "default_model: passthrough\nmcp:\n  servers:\n    n:\n      comand: x\n",
            "5: mcp.servers.n.comand: unknown key (did you mean 'command'?)",
        ),
        (
            "# mine\ndefault_model: openai.gpt-5-mini\n",
            "2: default_model: model 'openai.gpt-5-mini' cannot be used: OpenAI API key not configured: ",
        ),
        (
            "azure: {api_key: a-key}\ndefault_model: azure.deployment\n",
            "2: default_model: model 'azure.deployment' cannot be used: Missing Azure endpoint: ",
        ),
    ],
)
def test_a_mistake_in_fast_agents_file_is_told_once_at_its_line(
    run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, fastagent: str, problem: str
) -> None:
    for key in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "CODEX_API_KEY", "FAST_AGENT_AUTH_FILE"):
        monkeypatch.delenv(key, raising=False)
    three_agents(folder, fastagent)
    ran = run("check")
    (line,) = lines_of(ran.err)
    assert (ran.code, line[: len("fastagent.config.yaml:") + len(problem)]) == (2, f"fastagent.config.yaml:{problem}")


def test_a_model_without_its_key_is_reported_at_the_model_of_its_agent(
    run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GROQ_API_KEY", raising=False)
    agents = "name: one\nagents:\n  quick:\n    instruction: Be quick.\n    model: groq.qwen/qwen3-32b\n"
    (folder / "agents.yaml").write_text(agents)
    (folder / "fastagent.config.yaml").write_text("default_model: passthrough\n")
    (line,) = lines_of(run("check").err)
    assert line.startswith("agents.yaml:5: agents.quick.model: agent 'quick' failed to start: Groq API key not ")


def test_the_project_of_the_page_about_providers_is_sound(
    run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = (Path(__file__).parents[2] / "docs" / "operate" / "providers.md").read_text()
    for file in ("agents.yaml", "fastagent.config.yaml", ".env"):
        (text,) = re.findall(rf"^```\w+\n(# {re.escape(file)}\n.*?)^```$", document, re.MULTILINE | re.DOTALL)
        (folder / file).write_text(text.replace("…", "a-key-4711"))
        for name in re.findall(r"^(\w+)=", text, re.MULTILINE):
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENROUTER_BASE_URL", "http://127.0.0.1:9/v1")  # its list of models is read
    ran = run("check")
    unknown = [line.partition(":")[2].split(": ")[1:3] for line in lines_of(ran.err)]
    assert unknown == [["agents.nova", "warning"], ["agents.router", "warning"]]
    assert ran.out.startswith("agents.yaml is fine: 9 agents (responses, openai, ")


@pytest.mark.usefixtures("_three")
def test_a_misspelt_default_model_is_told_beside_the_agents_that_have_none(
    run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FAST_AGENT_MODEL", raising=False)
    three_agents(folder, "default_modle: passthrough\n")
    ran = run("check")
    assert ran.code == 2
    assert [line.split(": ", 2)[1] for line in lines_of(ran.err)] == [
        "agents.one.model",
        "agents.three.module",
        "default_modle",
    ]


@pytest.mark.usefixtures("_three")
def test_a_default_model_that_nobody_knows_is_one_warning_at_its_line(run: Command, folder: Path) -> None:
    three_agents(folder, "# mine\ndefault_model: generic.nobody-declares-it\n")
    ran = run("check")
    (line,) = lines_of(ran.err)
    assert ran.code == 0
    assert line.startswith(
        "fastagent.config.yaml:2: default_model: warning: fast-agent does not know the model 'nobody-"
    )


def test_a_command_that_is_not_there_is_a_warning_for_whoever_uses_it(run: Command, folder: Path) -> None:
    servers = {
        "library": {"command": "no-such-command"},
        "local": {"command": "./server", "cwd": str(folder)},
        "one-text": {"command": "no-such-command --with=arguments"},
        "unused": {"command": "no-such-command-either"},
        "fine": {"command": sys.executable},
        "found": {"command": "env"},
    }
    used = [name for name in servers if name != "unused"]
    project_in(folder, {name: Agent(servers=used) for name in ("echo", "other")}, servers=servers)
    ran = run("check")
    assert ran.code == 0
    told = [line.split(": ", 1)[1] for line in lines_of(ran.err)]
    assert told == [
        f"mcp.servers.{name}.command: warning: command '{servers[name]['command']}' not found{hint}; agents run "
        "without this server's tools"
        for name, hint in (("library", ""), ("local", ""), ("one-text", " (arguments belong in `args`)"))
    ]

    (folder / "server").touch(mode=0o755)
    assert "local" not in run("check").err


def test_what_serve_would_warn_of_is_a_warning_with_its_line(run: Command, folder: Path) -> None:
    keys = [{"name": "ci", "sha256": "a" * 64, "grants": ["run:agents"]}, {"name": "idle", "sha256": "b" * 64}]
    project_in(folder, gateway={"host": "0.0.0.0", "auth": {"tokens": keys}})  # noqa: S104  read, never bound
    lines = Path("agents.yaml").read_text().splitlines()
    host, idle = lines.index("  host: 0.0.0.0") + 1, lines.index("    - name: idle") + 1
    ran = run("check")
    assert (ran.code, ran.out) == (0, "agents.yaml is fine: 1 agent (echo)\n")
    assert lines_of(ran.err) == [
        f"agents.yaml:{host}: gateway.public_url: warning: clients elsewhere are given localhost URLs, which they "
        "cannot reach; set gateway.public_url",
        f"agents.yaml:{idle}: gateway.auth.tokens.1: warning: a key without grants opens nothing; give it some, such "
        "as run:agents",
    ]


def test_a_host_that_is_not_bound_is_a_warning_that_says_what_to_set(run: Command, folder: Path) -> None:
    project_in(folder, deployment={"host": "my-host"})
    ran = run("check")
    assert (ran.code, ran.out) == (0, "agents.yaml is fine: 1 agent (echo)\n")
    assert lines_of(ran.err) == [
        "agents.yaml:3: host: warning: clients are given URLs of a host on which nothing listens, as only this "
        "machine's loopback address is bound; set gateway.host (0.0.0.0 binds every address), or gateway.public_url "
        "where a proxy stands in front"
    ]


def test_doors_are_not_judged_by_half_a_gateway_section(run: Command, folder: Path) -> None:
    project_in(folder, gateway={"host": "0.0.0.0", "auth": "on"})  # noqa: S104  read, never bound
    ran = run("check")
    assert ran.code == 2
    assert [line.split(": ")[1] for line in lines_of(ran.err)] == ["gateway.auth"]


def test_per_port_wants_what_serve_per_port_wants(run: Command, folder: Path) -> None:
    agents = {"echo": Agent(), "other": Agent(settings={"port": 24201})}
    project_in(folder, agents, gateway={"host": "127.0.0.1"})
    assert run("check").code == 0
    ran = run("check", "--per-port")
    assert (ran.code, [line.split(": ", 1)[1] for line in lines_of(ran.err)]) == (
        2,
        ["agents.echo.port: is required with --per-port, which `pallas` implies"],
    )


# Where a command finds its project


def test_the_configuration_is_found_by_variable_and_by_option_which_wins(
    run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = project_in(folder / "project", {"echo": Agent(model="passthrough")})
    monkeypatch.syspath_prepend(project.path)
    file = project.path / "agents.yaml"
    monkeypatch.setenv("PALLAS_AGENTS_CONFIG", str(file))
    assert run("check").out == f"{file} is fine: 1 agent (echo)\n"
    ran = run("check", "--config", "other.yaml")
    assert (ran.code, ran.err.partition(":")[0]) == (2, "other.yaml")


def test_the_working_directory_is_on_the_import_path(run: Command, folder: Path) -> None:
    project = project_in(folder / "project", {"echo": Agent(model="passthrough")})
    (folder / project.package).symlink_to(project.path / project.package)
    assert run("check", "--config", project.path / "agents.yaml").code == 0


def test_modules_and_settings_beside_the_configuration_are_found_from_elsewhere(
    run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FAST_AGENT_MODEL", raising=False)
    project = project_in(folder / "project")
    file = project.path / "agents.yaml"
    assert run("check", "--config", file).out == f"{file} is fine: 1 agent (echo)\n"


def test_settings_of_the_working_directory_come_before_those_beside_the_configuration(
    run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FAST_AGENT_MODEL", raising=False)
    project = project_in(folder / "project")
    file = project.path / "agents.yaml"
    Path("fastagent.config.yaml").write_text("default_model: nobody.knows-this\n")
    ran = run("check", "--config", file)
    assert (ran.code, "nobody.knows-this" in ran.err) == (2, True)
    project.edit(lambda document: document.update(fastagent_config="fastagent.config.yaml"))
    assert run("check", "--config", file).code == 0


def test_a_missing_module_says_that_it_was_looked_for_in_both_folders(run: Command, folder: Path) -> None:
    project = project_in(folder / "project")
    shutil.rmtree(project.path / project.package)
    ran = run("check", "--config", project.path / "agents.yaml")
    assert ran.code == 2
    assert f"no module '{project.package}.echo' in {folder} or {project.path}, and none is installed" in ran.err


def test_dotenv_is_read_and_overwrites_nothing(run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project_in(folder, deployment={"version": "${PROJECT_VERSION}", "namespace": "${PROJECT_NAMESPACE}"})
    Path(".env").write_text("PROJECT_VERSION=1.2.3\nPROJECT_NAMESPACE=not a namespace\n")
    monkeypatch.setenv("PROJECT_NAMESPACE", "com.example.set-before")

    assert run("check").code == 0

    assert os.environ["PROJECT_VERSION"] == "1.2.3"
    assert os.environ["PROJECT_NAMESPACE"] == "com.example.set-before"


def test_dotenv_may_name_the_configuration(run: Command, folder: Path) -> None:
    project_in(folder)
    Path("agents.yaml").rename("deployment.yaml")
    Path(".env").write_text("PALLAS_AGENTS_CONFIG=deployment.yaml\n")
    assert run("check").out == "deployment.yaml is fine: 1 agent (echo)\n"


@pytest.mark.parametrize("url", ["argos.example/mcp", "ftp://argos.example/mcp", "http:///mcp", "http://[::1/mcp"])
def test_an_address_that_nothing_can_be_reached_at_is_a_problem(url: str, run: Command, folder: Path) -> None:
    project_in(folder, servers={"argos": {"transport": "http", "url": url}}, fastagent={"openai": {"base_url": url}})
    ran = run("check")
    wrong = "must be an http:// or https:// URL with a host"
    assert ran.code == 2
    told = {line.split(": ", 1)[1] for line in lines_of(ran.err)}
    assert {f"openai.base_url: {wrong}", f"mcp.servers.argos.url: {wrong}"} <= told


@pytest.mark.parametrize("file", ["fastagent.config.yaml", "fastagent.secrets.yaml"])
def test_a_providers_bad_address_is_told_with_its_place(file: str, run: Command, folder: Path) -> None:
    project_in(folder)
    Path(file).touch()
    line = add_to(file, "openai:\n  api_key: k\n  base_url: llm.example/v1") + 2
    ran = run("check")
    assert ran.code == 2
    assert lines_of(ran.err) == [f"{file}:{line}: openai.base_url: must be an http:// or https:// URL with a host"]


@pytest.mark.parametrize(("key", "there"), [("certfile", "key.pem"), ("keyfile", "cert.pem")])
def test_a_certificate_that_is_not_there_is_one_line(key: str, there: str, run: Command, folder: Path) -> None:
    (folder / there).write_text("garbage")
    project_in(folder, gateway={"tls": {"certfile": "cert.pem", "keyfile": "key.pem"}})
    [line] = [line for line in run("check").err.splitlines() if "tls" in line]
    assert line.endswith(
        f"gateway.tls.{key}: no file '{'cert' if key == 'certfile' else 'key'}.pem' in the folder of agents.yaml"
    )


@pytest.mark.parametrize(("days", "says"), [(-1, "expired at"), (5, "in 5.0 days; renew it"), (90, None)])
def test_a_certificate_that_ends_soon_is_a_warning(days: int, says: str | None, run: Command, folder: Path) -> None:
    write_certificate(folder, days=days)
    project_in(folder, gateway={"tls": TLS_FILES})
    ran = run("check")
    assert ran.code == 0
    warned = [line for line in ran.err.splitlines() if "gateway.tls.certfile: warning: " in line]
    assert [says in line for line in warned if says] == [True] * (says is not None)
    assert len(warned) == (says is not None)


def test_a_certificate_that_is_none_is_a_problem(run: Command, folder: Path) -> None:
    for name in ("cert.pem", "key.pem"):
        (folder / name).write_text("garbage")
    project_in(folder, gateway={"tls": {"certfile": "cert.pem", "keyfile": "key.pem"}})
    ran = run("check")
    assert ran.code == 2
    assert "gateway.tls: cert.pem is no certificate that fits key.pem" in ran.err


WRONG_TWICE = """\
default_model: 5
llm_retries: many
model_capabilities: {vision: 3}
mcp:
  servers:
    first:
      url: "htp://localhost"
      headers: [a]
      unknwn: 1
    second: {url: http://localhost/mcp, headers: {Authorization: "Bearer ${NO_SUCH_VARIABLE}"}}
    third: {transport: stdoi, command: a}
    fourth: {url: http://localhost/mcp, token_exchange: {token_endpoint: x}}
    fifth: {url: http://localhost/mcp, token_exchange: {token_endpoint: http://localhost/token}}
    sixth: {url: http://localhost/mcp, warm: 3}
    seventh: 5
    eighth: {url: http://localhost/mcp, management: nobody}
    ninth: {url: http://localhost/mcp, max_missed_pings: [1]}
openai: {base_url: nowhere}
"""
USING_THEM = """\
name: test
host: localhost
agents:
  well: {instruction: x, servers: [first, second, third, fourth, fifth, sixth, seventh, eighth, ninth]}
  lost: {instruction: x, servers: [nowhere, first]}
  missing: {module: no.such}
"""


@pytest.mark.parametrize("online", [[], ["--online"]])
def test_wrong_values_in_fast_agents_file_hide_no_other_problem(run: Command, folder: Path, online: list[str]) -> None:
    Path("agents.yaml").write_text(USING_THEM)
    Path("fastagent.config.yaml").write_text(WRONG_TWICE)

    ran = run("check", *online)

    assert (ran.code, ran.out) == (2, "")
    found = [line.split(": ", 2) for line in lines_of(ran.err)]
    file = "fastagent.config.yaml"
    assert [tuple(one[:2]) for one in found] == [
        ("agents.yaml:5", "agents.lost.servers.0"),
        ("agents.yaml:6", "agents.missing.module"),
        (f"{file}:1", "default_model"),
        (f"{file}:2", "llm_retries"),
        (f"{file}:3", "model_capabilities.vision"),
        (f"{file}:7", "mcp.servers.first.url"),
        (f"{file}:8", "mcp.servers.first.headers"),
        (f"{file}:9", "mcp.servers.first.unknwn"),
        (f"{file}:10", "mcp.servers.second.headers.Authorization"),
        (f"{file}:11", "mcp.servers.third.transport"),
        (f"{file}:12", "mcp.servers.fourth.token_exchange.token_endpoint"),
        (f"{file}:13", "mcp.servers.fifth.token_exchange"),
        (f"{file}:14", "mcp.servers.sixth"),
        (f"{file}:15", "mcp.servers.seventh"),
        (f"{file}:16", "mcp.servers.eighth.management"),
        (f"{file}:17", "mcp.servers.ninth"),
        (f"{file}:18", "openai.base_url"),
    ]
    assert found[-2][2].startswith("fast-agent cannot read a value of this server: int() argument must be ")


def test_wrong_values_in_a_modules_own_file_are_reported_at_its_agent(run: Command, folder: Path) -> None:
    own = "from fast_agent import FastAgent\nfast = FastAgent('x', parse_cli_args=False, config_path='own.yaml')\n"
    project_in(folder, {"own": Agent(source=f"{own}@fast.agent(name='x')\nasync def x(): ...\n")})
    Path("own.yaml").write_text("default_model: passthrough\nllm_retries: many\n")
    line = add_to("fastagent.config.yaml", "logger: {level: loud}")

    first, second = lines_of(run("check").err)

    assert "agents.own.module" in first or "llm_retries" in first
    assert second.startswith(f"fastagent.config.yaml:{line}: logger.level: must be ")
