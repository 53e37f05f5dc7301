"""What is read of fast-agent's files, and what is left to fast-agent."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from pallas_gateway.config.loading.fastagent_file import FastAgentFile, servers_at
from pallas_gateway.config.loading.loader import read_deployment
from pallas_gateway.config.model.agents import ModelCapabilities
from pallas_gateway.config.model.downstreams import ProcessSettings, TokenExchangeSettings
from pallas_gateway.config.problems import ConfigurationError
from tests.support.configuration import load_deployment
from tests.unit.config.configuration_page import markdown

AGENTS = "name: demo\nagents:\n  jarvis:\n    module: agents.jarvis\n"
CONFIG = Path("fastagent.config.yaml")
SECRETS = Path("fastagent.secrets.yaml")
CHAT = "azure, generic, groq, hf, moonshot, openai, openrouter, tensorzero, zai"
SERVER = "mcp:\n  servers:\n    argos: "
LIVE_ONLY = f"must be true or false, and may be true for {CHAT}"


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(agents: str = AGENTS, environ: Mapping[str, str] | None = None) -> FastAgentFile:
    Path("agents.yaml").write_text(agents)
    return load_deployment(Path("agents.yaml"), environ=environ or {}).fastagent


def problems(environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load(environ=environ)
    return [str(problem) for problem in caught.value.problems]


def test_a_project_without_the_file_gets_an_empty_one() -> None:
    assert load() == FastAgentFile()


def test_an_empty_file_is_fine() -> None:
    CONFIG.touch()
    assert load() == FastAgentFile(path=CONFIG)


def test_the_documented_keys_are_read_and_all_others_ignored() -> None:
    CONFIG.write_text(
        "default_model: openai.my-model\n"
        "model_capabilities: {vision: true, context_window: 200000}\n"
        "logger: {level: debug, type: none}\n"
        "execution_engine: asyncio\n"
        "mcp:\n  servers:\n    argos: {url: http://argos.example/mcp, load_on_start: false}\n"
    )
    file = load()
    assert (file.path, file.default_model, file.logger_level) == (CONFIG, "openai.my-model", "debug")
    assert file.model_capabilities == ModelCapabilities(vision=True, context_window=200000)
    assert (file.servers["argos"].url, file.servers["argos"].line) == ("http://argos.example/mcp", 7)


@pytest.mark.parametrize(
    ("entry", "transport", "url", "command"),
    [
        ("{url: http://a.example/mcp}", "http", "http://a.example/mcp", None),
        ("{url: http://a.example}", "http", "http://a.example/mcp", None),
        ("{url: http://a.example/base/}", "http", "http://a.example/base/mcp", None),
        ("{url: 'http://a.example/?key=1'}", "http", "http://a.example/?key=1", None),
        ("{url: http://a.example/sse}", "sse", "http://a.example/sse", None),
        ("{url: http://a.example/x, transport: sse}", "sse", "http://a.example/x", None),
        ("{url: http://a.example/mcp, command: uvx}", "http", "http://a.example/mcp", None),
        ("{target: https://a.example}", "http", "https://a.example/mcp", None),
        ("{target: uvx mcp-server-time}", "stdio", None, "uvx"),
        ("{command: uvx, args: [mcp-server-time]}", "stdio", None, "uvx"),
        ("{url: 'http://[bad/mcp'}", "http", "http://[bad/mcp", None),
    ],
)
def test_a_server_is_reached_as_fast_agent_would_reach_it(
    entry: str, transport: str, url: str | None, command: str | None
) -> None:
    CONFIG.write_text(f"mcp:\n  servers:\n    argos: {entry}\n")
    server = load().servers["argos"]
    assert (server.transport, server.url, server.command) == (transport, url, command)
    assert server.args == (("mcp-server-time",) if command else ())


def test_secrets_are_merged_over_the_configuration_and_show_in_no_repr() -> None:
    CONFIG.write_text(
        "mcp:\n  servers:\n    argos:\n      url: http://argos.example/mcp?key=s3cret\n"
        "      headers: {x-team: s3cret-blue, Authorization: '${NOT_SET}'}\n"
    )
    SECRETS.write_text(
        "mcp:\n  servers:\n    argos: {headers: {Authorization: Bearer s3cret}}\n"
        "    neo4j: {command: uvx, args: [s3cret]}\n"
    )
    file = load()
    assert dict(file.servers["argos"].headers) == {"x-team": "s3cret-blue", "Authorization": "Bearer s3cret"}
    assert file.unset == ()
    assert file.servers["neo4j"].line == 4
    assert "s3cret" not in repr(file)


def test_secrets_alone_are_read_too() -> None:
    SECRETS.write_text("openai: {base_url: http://llm.example/v1}\n")
    file = load()
    assert (file.path, file.written) == (None, {"openai": {"base_url": "http://llm.example/v1"}})


@pytest.mark.parametrize("token", ["abc", "Bearer abc", "bearer  abc "])
def test_an_access_token_becomes_the_authorization_header(token: str) -> None:
    CONFIG.write_text(f"mcp:\n  servers:\n    argos: {{url: http://a/mcp, access_token: '{token}'}}\n")
    assert dict(load().servers["argos"].headers) == {"Authorization": "Bearer abc"}


@pytest.mark.parametrize(
    ("flag", "forwards"),
    [
        ("forward_inbound_auth: true", True),
        ("forward_inbound_auth: ${FORWARD}", True),
        ("forward_inbound_auth: false", False),
        ("auth: {forward: huggingface}", True),
        ("auth: {oauth: false}", False),
        ("description: nothing said", False),
    ],
)
def test_the_callers_bearer_goes_only_to_marked_servers(flag: str, forwards: bool) -> None:
    CONFIG.write_text(f"mcp:\n  servers:\n    argos:\n      url: http://a/mcp\n      {flag}\n")
    assert load(environ={"FORWARD": "true"}).servers["argos"].forward_inbound_auth is forwards


@pytest.mark.parametrize(
    "own", ["headers: {AUTHORIZATION: Bearer x}", "headers: {X-HF-Authorization: Bearer x}", "access_token: x"]
)
def test_the_callers_bearer_does_not_go_where_a_server_has_credentials_of_its_own(own: str) -> None:
    CONFIG.write_text(f"mcp:\n  servers:\n    argos: {{url: http://a/mcp, forward_inbound_auth: true, {own}}}\n")
    assert load().servers["argos"].forward_inbound_auth is False


def exchanging(exchange: str, server: str = "url: http://a/mcp, forward_inbound_auth: true") -> str:
    """A configuration whose server `notes` exchanges tokens; `token_exchange` stands on line 4."""
    return f"mcp:\n  servers:\n    notes: {{{server},\n      token_exchange: {exchange}}}\n"


ENDPOINT = "token_endpoint: https://login.example/token"


def test_a_token_exchange_is_read_with_its_secret_from_the_other_file() -> None:
    CONFIG.write_text(exchanging(f"{{{ENDPOINT}, client_id: pallas, client_auth: '${{HOW:-post}}', scope: a b}}"))
    SECRETS.write_text("mcp:\n  servers:\n    notes:\n      token_exchange: {client_secret: '${NOTES_SECRET}'}\n")
    file = load(environ={"NOTES_SECRET": "0123"})
    assert file.servers["notes"].token_exchange == TokenExchangeSettings(
        token_endpoint="https://login.example/token",
        client_id="pallas",
        client_secret="0123",
        client_auth="post",
        scope="a b",
    )
    assert "0123" not in repr(file)
    assert "0123" not in str(file.servers["notes"].token_exchange)


MARKED = "url: http://a/mcp, forward_inbound_auth: true"
ABSOLUTE = ".token_endpoint: must be an absolute http:// or https:// URL"
EMPTY_SECRET = ".client_secret: must not be empty; leave the key out for a public client"
EXCHANGES = {
    "{}": ".token_endpoint: is required",
    "": ".token_endpoint: is required",
    "false": ": must be a mapping (indented 'key: value' lines)",
    f"{{{ENDPOINT}, audiance: notes}}": ".audiance: unknown key (did you mean 'audience'?)",
    "{token_endpoint: login.example/token}": ABSOLUTE,
    "{token_endpoint: 'ftp://login.example/token'}": ABSOLUTE,
    "{token_endpoint: 'http://login.example/token'}": (
        ".token_endpoint: must begin with https://; http:// is only for this machine (localhost, 127.0.0.1 or [::1])"
    ),
    "{token_endpoint: 'https://me:s3cret@login.example/token'}": (
        ".token_endpoint: must not hold a user or password; it is shown to clients and in logs"
    ),
    f"{{{ENDPOINT}, url: 'http://a/mcp'}}": ".url: unknown key; it belongs under mcp.servers.notes",
    f"{{{ENDPOINT}, client_id: a, client_secret: '${{NOTES_SECRET}}'}}": (
        ".client_secret: environment variable NOTES_SECRET is not set; set it, or write ${NOTES_SECRET:-default}"
    ),
    f"{{{ENDPOINT}, client_id: a, client_secret: '${{EMPTY}}'}}": EMPTY_SECRET,
    f"{{{ENDPOINT}, client_id: a, client_secret: }}": EMPTY_SECRET,
    f"{{{ENDPOINT}, client_secret: a}}": ": client_secret requires a client_id",
    f"{{{ENDPOINT}, client_auth: jwt}}": ".client_auth: must be 'basic' or 'post'",
    f"{{{ENDPOINT}, resource: notes}}": (
        ".resource: must be an absolute URI without a fragment, such as https://notes.example/mcp"
    ),
}
EXCHANGING_SERVERS = {
    "url: http://a/mcp": "requires forward_inbound_auth: true",
    f"{MARKED}, access_token: x": (
        "is never used, because the server has an Authorization header of its own; remove one of them"
    ),
    f"{MARKED}, auth: {{forward: huggingface}}": (
        "cannot be used with auth.forward, which sends the caller's own token; write forward_inbound_auth: true"
    ),
    "command: uvx, forward_inbound_auth: true": "is only for servers with a url; a child process gets no token",
}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((exchanging(one), message) for one, message in EXCHANGES.items()),
        *((exchanging(f"{{{ENDPOINT}}}", one), f": {message}") for one, message in EXCHANGING_SERVERS.items()),
    ],
)
def test_a_token_exchange_that_cannot_work_is_refused(text: str, message: str) -> None:
    CONFIG.write_text(text)
    assert problems({"EMPTY": ""}) == [f"fastagent.config.yaml:4: mcp.servers.notes.token_exchange{message}"]


def test_the_reference_names_every_key_of_a_token_exchange() -> None:
    page = (Path(__file__).parents[4] / "docs" / "operate" / "token-exchange.md").read_text()
    assert [key for key in TokenExchangeSettings.model_fields if f"| `{key}` |" not in page] == []


def test_unset_variables_stay_as_written_and_are_listed_with_their_place() -> None:
    CONFIG.write_text(
        "default_model: ${MODEL:-passthrough}\n"
        "mcp:\n  servers:\n    argos:\n      url: http://${HOST:argos.example}/mcp\n"
        "      headers:\n        Authorization: Bearer ${ARGOS_TOKEN}\n"
    )
    file = load()
    assert (file.default_model, file.servers["argos"].url) == ("passthrough", "http://argos.example/mcp")
    assert file.servers["argos"].headers["Authorization"] == "Bearer ${ARGOS_TOKEN}"
    assert [(one.variable, one.path, one.line, one.file) for one in file.unset] == [
        ("ARGOS_TOKEN", "mcp.servers.argos.headers.Authorization", 7, "fastagent.config.yaml")
    ]


def test_an_empty_default_in_fast_agents_own_form_is_kept_when_the_variable_is_empty() -> None:
    CONFIG.write_text("default_model: ${MODEL:fallback}\nlogger: {level: '${LEVEL:-info}'}\n")
    file = load(environ={"MODEL": "", "LEVEL": ""})
    assert (file.default_model, file.logger_level) == (None, "info")


def test_a_problem_is_where_the_file_that_counts_has_the_key() -> None:
    CONFIG.write_text("openai:\n  base_url: http://config.example\ngeneric:\n  base_url: http://llm.example/s3cret\n")
    SECRETS.write_text("# keys\n\nopenai:\n  api_key: k\n  base_url: http://secrets.example\n")
    file = load()
    problems = [file.problem(f"{name}.base_url", "wrong") for name in ("openai", "generic")]
    assert [(one.file, one.line) for one in problems] == [(str(SECRETS), 5), (str(CONFIG), 4)]
    assert "s3cret" not in repr(file)


def test_the_named_file_is_relative_to_the_deployment_file() -> None:
    Path("deploy").mkdir()
    Path("deploy/agents.yaml").write_text(AGENTS + "fastagent_config: fa.yaml\n")
    Path("deploy/fa.yaml").write_text("default_model: passthrough\n")
    CONFIG.write_text("default_model: other\n")
    file = load_deployment(Path("deploy/agents.yaml"), environ={}).fastagent
    assert (file.path, file.default_model) == (Path("deploy/fa.yaml"), "passthrough")


@pytest.mark.parametrize("name", ["fast-agent.yaml", "fast-agent.config.yaml", "fastagent.config.yaml"])
def test_every_name_that_fast_agent_knows_is_found(name: str) -> None:
    Path(name).write_text("default_model: passthrough\n")
    assert load().path == Path(name)


def test_two_files_of_one_kind_are_refused_as_fast_agent_does() -> None:
    CONFIG.touch()
    Path("fast-agent.yaml").touch()
    assert problems() == ["fastagent.config.yaml: fast-agent.yaml exists too; keep one, as fast-agent refuses both"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mcp: {servers\n", "2: not valid YAML: a bracket or brace is not closed"),
        ("- a\n", "1: must be a mapping of keys, such as 'default_model: …'"),
        (
            "model_capabilities:\n  contxt_window: 1\n",
            "2: model_capabilities.contxt_window: unknown key (did you mean 'context_window'?)",
        ),
        (
            "model_capabilities:\n  max_output_tokens: 0\n",
            "2: model_capabilities.max_output_tokens: must be at least 1",
        ),
        ("mcp:\n  servers:\n    argos:\n", "3: mcp.servers.argos: must be a mapping (indented 'key: value' lines)"),
        (
            SERVER + "{forward_inbound_auth: perhaps}\n",
            "3: mcp.servers.argos.forward_inbound_auth: must be true or false",
        ),
        (
            SERVER + "{url: http://a/mcp, listing_seconds: -1}\n",
            "3: mcp.servers.argos.listing_seconds: must be at least 0",
        ),
        ("generic: {stream_live_only: 1}\n", f"1: generic.stream_live_only: {LIVE_ONLY}"),
        ("google: {stream_live_only: true}\n", f"1: google.stream_live_only: {LIVE_ONLY}"),
    ],
)
def test_what_the_gateway_reads_is_checked(text: str, problem: str) -> None:
    CONFIG.write_text(text)
    assert problems() == [f"fastagent.config.yaml:{problem}"]


def test_a_mistake_in_the_secrets_names_that_file_and_no_secret() -> None:
    CONFIG.write_text("mcp:\n  servers:\n    argos: {url: http://a/mcp}\n")
    SECRETS.write_text("mcp:\n  servers:\n    argos:\n      headers: [s3cret]\n")
    assert problems() == [
        "fastagent.secrets.yaml:4: mcp.servers.argos.headers: must be a mapping (indented 'key: value' lines)"
    ]


def test_a_key_that_stands_twice_there_is_fast_agents_business() -> None:
    CONFIG.write_text("default_model: a\ndefault_model: b\n")
    assert load().default_model == "b"


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (
            "url: http://a.example/mcp, warm: 2, shared: true",
            ": shared, warm: only for stdio servers; the gateway starts",
        ),
        ("command: uvx, warm: -1", ".warm: must be at least 0"),
        ("command: uvx, max_processes: 0", ".max_processes: must be at least 1"),
        ("command: uvx, warm: 20", ": warm: 20 is more than max_processes (16); lower it or raise max_processes"),
        ("command: uvx, warm: 2, max_processes: 1", ": warm: 2 is more than max_processes (1); lower it or raise"),
        ("command: uvx, idle_seconds: 0", ".idle_seconds: must be more than 0"),
        ("command: uvx, shared: 1", ".shared: must be true or false"),
    ],
)
def test_processes_that_cannot_be_kept_are_refused(server: str, message: str) -> None:
    CONFIG.write_text(f"{SERVER}{{{server}}}\n")
    (problem,) = problems()
    assert problem.startswith(f"fastagent.config.yaml:3: mcp.servers.argos{message}")


def test_the_reference_names_every_key_of_processes() -> None:
    assert all(f"`mcp.servers.<name>.{key}`" in markdown() for key in ProcessSettings.model_fields)


def test_wrong_values_are_left_out_of_what_is_read_to_find_more_problems() -> None:
    CONFIG.write_text(
        "default_model: 5\nlogger: {level: debug}\nmcp:\n  servers:\n"
        "    argos: {url: http://argos.example/mcp, headers: [a], args: [1, b]}\n"
        "    neo4j: {url: http://neo4j.example/mcp, token_exchange: {client_id: x}}\n"
        "    time: {url: http://time.example/mcp, warm: 2}\n"
    )
    Path("agents.yaml").write_text(AGENTS)
    loaded = read_deployment(Path("agents.yaml"), environ={})
    assert loaded.configuration is not None
    file = loaded.configuration.fastagent
    assert (file.default_model, file.logger_level) == (None, "debug")
    assert {one.name: (one.url, dict(one.headers), one.token_exchange) for one in file.servers.values()} == {
        name: (f"http://{name}.example/mcp", {}, None) for name in ("argos", "neo4j", "time")
    }
    assert [(one.line, one.path) for one in loaded.problems] == [
        (1, "default_model"),
        (5, "mcp.servers.argos.args.0"),
        (5, "mcp.servers.argos.headers"),
        (6, "mcp.servers.neo4j.token_exchange.token_endpoint"),
        (7, "mcp.servers.time"),
    ]
    assert servers_at(file.wrong) == {"argos", "neo4j", "time"}


def test_of_a_file_that_cannot_be_parsed_nothing_is_read() -> None:
    CONFIG.write_text("logger: [")
    Path("agents.yaml").write_text(AGENTS)
    loaded = read_deployment(Path("agents.yaml"), environ={})
    assert loaded.configuration is not None
    assert loaded.configuration.fastagent == FastAgentFile(is_readable=False)
