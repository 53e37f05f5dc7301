"""One mistake per row, with the exact sentences the operator gets for it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pallas_gateway.config.loading.loader import Overrides, read_deployment
from pallas_gateway.config.model.parameters import PARAMETERS
from pallas_gateway.config.problems import ConfigurationError
from tests.support.configuration import load_deployment

ONE = "name: demo\nagents:\n  jarvis:\n    module: agents.jarvis\n"  # four lines; what follows starts on line 5
TWO = ONE + "  research:\n    module: agents.research\n"  # six lines
GATEWAY = ONE + "gateway:\n"  # five lines
TEXT = "must be text; put a number, a date or true/false in quotes"
MAPPING = "must be a mapping (indented 'key: value' lines)"
URL = "must be an absolute http:// or https:// URL without user, query or fragment"
CLEAR_TEXT = "must begin with https://; http:// is only for this machine (localhost, 127.0.0.1 or [::1])"
USER = "must not hold a user or password; it is shown to clients and in logs"
DATABASE = "must be sqlite:///FILE, sqlite:////ABSOLUTE/FILE or postgresql://USER:PASSWORD@HOST/DATABASE"
HOST = "must be a host name or an address alone, without scheme, port or path"
PROXY = "write one such as 10.0.0.7, 10.0.0.0/8 or fd00::/8"
NAMES = ", ".join(f"'{name}'" for name in PARAMETERS[:-1]) + " or 'model'"
NOTHING = "requires a module, an instruction, an instruction_file or a card"
DECLARED = "name: demo\nagents:\n  jarvis:\n    instruction: You are jarvis.\n"  # four lines
NAME = "an agent's name begins with a letter or digit and holds only letters, digits, '_', '.' and '-'"


ALL = Overrides()
PER_PORT = Overrides(per_port=True)


@dataclass(frozen=True)
class Mistake:
    """A file (`agents.yaml`), how it is loaded, and what is said about it."""

    name: str
    yaml: str
    problems: list[str]
    overrides: Overrides = ALL
    environ: dict[str, str] = field(default_factory=dict)


MISTAKES = [
    Mistake("an empty file", "", ["agents.yaml: is empty; agents.example.yaml shows what belongs in it"]),
    *(
        Mistake(
            f"aliases that grow exponentially in {what}",
            f"name: demo\nagents:\n  a0: &a0 {first}\n"
            + "".join(
                f"  a{level}: &a{level} {outer.format(', '.join([f'*a{level - 1}'] * 10))}\n" for level in range(1, 9)
            ),
            [f"agents.yaml:{line}: not valid YAML: aliases repeat more than 100,000 values"],
        )
        for what, first, outer, line in (("lists", "[x]", "[{}]", 4), ("merges", "{b: x}", "{{<<: [{}]}}", 3))
    ),
    Mistake(
        "the registry's port in per-port mode",
        ONE + "    port: 24200\n",
        ["agents.yaml:5: agents.jarvis.port: port 24200 is already taken by registry_port"],
        PER_PORT,
    ),
    Mistake(
        "no ports in per-port mode",
        TWO,
        [
            "agents.yaml:3: agents.jarvis.port: is required with --per-port, which `pallas` implies",
            "agents.yaml:5: agents.research.port: is required with --per-port, which `pallas` implies",
        ],
        PER_PORT,
    ),
    Mistake(
        "no port for the one agent",
        TWO,
        ["agents.yaml:5: agents.research.port: is required with --agent"],
        Overrides(agent="research"),
    ),
    Mistake(
        "a value that is wrong by itself is not judged by rules too",
        ONE + "    port: many\n",
        ["agents.yaml:5: agents.jarvis.port: must be a whole number"],
        PER_PORT,
    ),
    Mistake(
        "a variable that is broken YAML",
        ONE + "registry_port: ${PORT}\n",
        ["agents.yaml:5: registry_port: must be a whole number"],
        environ={"PORT": "["},
    ),
    Mistake(
        "a variable that is no number",
        ONE + "registry_port: ${PORT}\n",
        ["agents.yaml:5: registry_port: must be a whole number"],
        environ={"PORT": "many"},
    ),
    Mistake(
        "an unknown agent asked for",
        TWO,
        ["--agent: no agent 'jarvi' (did you mean 'jarvis'?)"],
        Overrides(agent="jarvi"),
    ),
    Mistake("a bad port asked for", GATEWAY + "  port: 1\n", ["--port: must be at most 65535"], Overrides(port=70000)),
    Mistake("a bad public URL asked for", ONE, [f"--public-url: {URL}"], Overrides(public_url="example.com")),
    Mistake(
        "a fast-agent file that is not there",
        ONE + "fastagent_config: conf/fa.yaml\n",
        ["conf/fa.yaml: no such file (named by fastagent_config)"],
    ),
    Mistake(
        "proxies that are no addresses",
        GATEWAY
        + "  trusted_proxies:\n    - '*'\n    - ingress.example.com\n    - 10.0.0.300\n    - 10.0.0.0/33\n    - 10\n",
        [
            *(
                f"agents.yaml:{line}: gateway.trusted_proxies.{line - 7}: '{value}' is no address or network; {PROXY}"
                for line, value in enumerate(("*", "ingress.example.com", "10.0.0.300", "10.0.0.0/33"), start=7)
            ),
            f"agents.yaml:11: gateway.trusted_proxies.4: {TEXT}",
        ],
    ),
    Mistake(
        "two keys of one name, and one key with two names",
        GATEWAY
        + "  auth:\n    tokens:\n"
        + "".join(f"      - {{name: {name}, sha256: {key * 64}}}\n" for name, key in ("ac", "ad", "bd")),
        [
            "agents.yaml:9: gateway.auth.tokens.1.name: 'a' is used twice; give each key its own name",
            "agents.yaml:10: gateway.auth.tokens.2.sha256: is the same key as another entry's; one key has one name",
        ],
    ),
    Mistake(
        "wrong values without which their sections cannot be read, and another one",
        ONE
        + "    agents: [nobody]\n"
        + "gateway:\n  prices: {a: {input: 1}}\n  auth: {jwt: {issuer: 3}}\n"
        + "  agents_may_use: {servers: {a: {tools: 3}}}\n",
        [
            "agents.yaml:5: agents.jarvis.agents: no agent 'nobody'",
            "agents.yaml:7: gateway.prices.a.output: is required",
            "agents.yaml:8: gateway.auth.jwt.issuer: must be text; put a number, a date or true/false in quotes",
            "agents.yaml:8: gateway.auth.jwt.jwks_uri: is required",
            "agents.yaml:9: gateway.agents_may_use.servers.a.tools: must be a list",
            "agents.yaml:9: gateway.agents_may_use: requires 'gateway.database', the database in which these agents "
            "are",
        ],
    ),
    Mistake(
        "what agents of the database may use",
        GATEWAY
        + "  database: sqlite:///a.db\n  agents_may_use:\n    models: openai.*\n    servers:\n"
        + "      unknown: ['*']\n      n*: ['*']\n      my__notes: ['*']\n      mail:\n      files: {forwards: true}\n"
        + "    approve: [everything]\n    most_agents: -1\n    most: {max_iterations: 0, max_in_flight: 1}\n"
        + "    modells: [a]\n",
        [
            "agents.yaml:8: gateway.agents_may_use.models: must be a list",
            "agents.yaml:10: gateway.agents_may_use.servers.unknown: no server 'unknown' under mcp.servers of "
            "fastagent.config.yaml",
            "agents.yaml:11: gateway.agents_may_use.servers.n*: must be the name of one server; patterns are for its "
            "tools",
            "agents.yaml:12: gateway.agents_may_use.servers.my__notes: has '__' in its name, which separates servers "
            "and tools; rename the server",
            'agents.yaml:13: gateway.agents_may_use.servers.mail: is empty; list its tools, such as ["*"], '
            "or remove it",
            "agents.yaml:14: gateway.agents_may_use.servers.files: requires 'tools', a list of its tools",
            "agents.yaml:15: gateway.agents_may_use.approve.0: must be a glob over `server/tool`, such as "
            "`files/delete_*`, or `destructive`",
            "agents.yaml:16: gateway.agents_may_use.most_agents: must be at least 0",
            "agents.yaml:17: gateway.agents_may_use.most.max_iterations: must be at least 1",
            "agents.yaml:17: gateway.agents_may_use.most.max_in_flight: unknown key",
            "agents.yaml:18: gateway.agents_may_use.modells: unknown key (did you mean 'models'?)",
        ],
    ),
    Mistake(
        "one name for two rules, also where it is the default of one",
        GATEWAY
        + "  limits:\n    rules:\n      - {name: rule-2, calls_per_minute: 1}\n      - {calls_at_once: 1}\n"
        + "      - {name: ci, calls_at_once: 1}\n      - {name: ci, calls_at_once: 2}\n",
        [
            "agents.yaml:9: gateway.limits.rules.1: is named 'rule-2', as rule 1; give it a name of its own",
            "agents.yaml:11: gateway.limits.rules.3: is named 'ci', as rule 3; give it a name of its own",
        ],
    ),
]

type Told = dict[str, str | tuple[str, ...]]
"""What stands in the file, and its problems: each with its line, if that is not the first one of the text."""
FILES: Told = {
    ONE.removeprefix("name: demo\n"): "name: is required",
    f"{ONE}namespace: {'n' * 194}\n": (
        "3: agents.jarvis: its registry name with the namespace is longer than 200 characters"
    ),
    TWO + "    depends_on:\n      - jarvis\n      - jravis\n": (
        "9: agents.research.depends_on: no agent 'jravis' (did you mean 'jarvis'?)"
    ),
    TWO + "    agents:\n      - jarvis\n      - jravis\n": (
        "9: agents.research.agents: no agent 'jravis' (did you mean 'jarvis'?)"
    ),
    DECLARED + "    instruction_file: jarvis.md\n    card: jarvis.md\n": tuple(
        f"{line}: agents.jarvis.{key}: stands beside instruction; an agent has one of module, instruction, "
        "instruction_file and card"
        for line, key in ((5, "instruction_file"), (6, "card"))
    ),
    ONE + "    servers: [argos]\n    model: passthrough\n    tools: [search]\n": tuple(
        f"{line}: agents.jarvis.{key}: goes with instruction or instruction_file; a module says this itself"
        for line, key in ((5, "servers"), (6, "model"), (7, "tools"))
    ),
    "# later\n": "is empty; agents.example.yaml shows what belongs in it",
    "- jarvis\n": "must be a mapping of keys, such as 'name: my-project'",
    "name: demo\nagents: {jarvis\n": "3: not valid YAML: a bracket or brace is not closed",
    "name: demo\n\tagents:\n": "2: not valid YAML: a tab stands where YAML allows only spaces; indent with spaces",
    "name: demo\n\thost: here\n": "2: not valid YAML: a tab stands where YAML allows only spaces; indent with spaces",
    "name: demo\nagents:\n  one:\n    description: Answers: questions\n": (
        "4: not valid YAML: put the value in quotes, because it contains ': '"
    ),
    "name: demo\nagents:\n  one:\n    module: x\n\n     title: One\n": (
        "6: not valid YAML: this line is indented like a part of the value above it; indent it like the other keys"
    ),
    "name: demo\nagents:\n  one:\n    module: x\n   title: One\n": (
        "5: not valid YAML: this line begins in another column than the lines that it belongs with; indent all of "
        "them alike"
    ),
    "name: demo\nagents:\n  one\n    module: x\n": "4: not valid YAML: line 3 has no ': ' after its key",
    "name:demo\nagents: {}\n": "2: not valid YAML: line 1 has no ': ' after its key",
    "name: demo\nagents\n": "3: not valid YAML: a key has no colon after it; write 'key: value'",
    'name: "demo\nagents:\n': "3: not valid YAML: a quote is not closed",
    "name: @demo\n": "1: not valid YAML: put the value in quotes, because it begins with this character",
    "name: *other\n": "1: not valid YAML: found undefined alias 'other'",
    "name: !env NAME\n": "1: not valid YAML: could not determine a constructor for the tag '!env'",
    "name: demo\nagents: &a\n  jarvis: *a\n": "2: not valid YAML: an alias stands inside its own anchor",
    f"{ONE}    <<: text\n": "5: not valid YAML: '<<' can only merge other mappings",
    "name: a\nhost: \x07\n": "2: not valid YAML: special characters are not allowed",
    "name: a\n---\nname: b\n": "2: not valid YAML: but found another document",
    "name: demo\n": "agents: is required",
    "name: demo\nagents: {}\n": "2: agents: must have at least one entry",
    "name: demo\nagents:\n": f"2: agents: {MAPPING}",
    "name: demo\nagents:\n  jarvis:\n": f"3: agents.jarvis: {MAPPING}",
    f"{ONE}  research:\n    port: 1\n": f"5: agents.research: {NOTHING}",
    f"{ONE}  _x:\n    module: m\n": f"5: agents._x: {NAME}",
    f"{ONE}  my agent:\n    module: m\n": f"5: agents.my agent: {NAME}",
    ONE + "  a_b: {module: m}\n  a-b: {module: m}\n": (
        "6: agents.a-b: has the same registry name 'a-b' as agent 'a_b'; rename one"
    ),
    ONE + "  send_message: {module: m}\n": (
        "5: agents.send_message: an agent cannot be named like the tool 'send_message'; rename it"
    ),
    ONE + "  get_health: {module: m}\n": (
        "5: agents.get_health: an agent cannot be named like the tool 'get_health'; rename it"
    ),
    f"{ONE}    port: 8201\n  research:\n    module: m\n    port: 8201\n": (
        "8: agents.research.port: port 8201 is already taken by agents.jarvis"
    ),
    "name: demo\nagents:\n  jarvis:\n    card: jarvis.md\n    model: passthrough\n": (
        "5: agents.jarvis.model: goes with instruction or instruction_file; a card says this itself"
    ),
    "name: demo\nagents:\n  jarvis:\n    instruction: 5\n    servers: [argos]\n": (
        f"4: agents.jarvis.instruction: {TEXT}"
    ),
    "name: demo\nagents:\n  jarvis:\n    instruction: ''\n": "4: agents.jarvis.instruction: must not be empty",
}
AT_TOP: Told = {
    "hots: h": "hots: unknown key (did you mean 'host'?)",
    "zzz: 1": "zzz: unknown key",
    "auth: {}": "auth: unknown key; it belongs under gateway",
    "port: 80": "port: unknown key; it belongs under gateway",
    "module: m": "module: unknown key; it belongs under agents.NAME",
    "issuer: https://a": "issuer: unknown key; it belongs under gateway.auth.jwt",
    "version: 1.0": f"version: {TEXT}",
    "version: 2026-06-01": f"version: {TEXT}",
    "host:": f"host: {TEXT}",
    'registry_port: "8200"': "registry_port: must be a whole number",
    'registry_port: !!int ""': "registry_port: must be a whole number",
    "gateway: on": f"gateway: {MAPPING}",
    'version: "^1.2"': "version: '^1.2' is not one version; write one such as 1.0.0",
    "version: 1.x": "version: '1.x' is not one version; write one such as 1.0.0",
    'version: "1.x.3"': "version: '1.x.3' is not one version; write one such as 1.0.0",
    "version: X.1": "version: 'X.1' is not one version; write one such as 1.0.0",
    "version: latest": "version: 'latest' is not one version; write one such as 1.0.0",
    f"version: v{'1' * 255}": "version: must have at most 255 characters",
    "namespace: com.my_project": "namespace: may hold only letters, digits, '.' and '-', such as com.example.project",
    "host: http://box": f"host: {HOST}",
    "registry_port: ${PORT}": "registry_port: environment variable PORT is not set; set it, or write ${PORT:-default}",
    "? [a]\n: b": "not valid YAML: a key must be plain text",
    "version: 2026-99-99\nhots: h": "6: hots: unknown key (did you mean 'host'?)",
    "gateway:\n  tool_names: [jarvis]": "3: agents.jarvis: an agent cannot be named like the tool 'jarvis'; rename it",
}
IN_AGENT: Told = {
    "module: agents.other": "module: this key is already on line 4; keep one of them",
    "caller_params: [temperature, messages]": f"caller_params.1: must be {NAMES}",
    "caller_params: seed": f"caller_params: {MAPPING}",
    "caller_params: [model]": "caller_params: callers may set 'model', but there is none; list some as models",
    "models: [openai.gpt-4.1]": "models: callers may choose one only if caller_params names 'model'",
    "descripton: d": "descripton: unknown key (did you mean 'description'?)",
    "max_body_bytes: 1": "max_body_bytes: unknown key; it belongs under gateway",
    "name: Jarvis": "name: unknown key",
    'title: " "': "title: must not be empty",
    'description: ""': "description: must not be empty",
    "max_iterations: true": "max_iterations: must be a whole number",
    "max_iterations: 1.5": "max_iterations: must be a whole number",
    "max_iterations: 0": "max_iterations: must be at least 1",
    "loop_repeat_threshold: -1": "loop_repeat_threshold: must be at least 0",
    "call_timeout_seconds: 0": "call_timeout_seconds: must be more than 0",
    "approve: [deploy]": "approve.0: must be a glob over `server/tool`, such as `files/delete_*`, or `destructive`",
    "port: 0": "port: must be at least 1",
    "depends_on: research": "depends_on: must be a list",
    "icons: [{src: a.png, sizes: 48x48 big}]": "icons.0.sizes.1: 'big' must be like 48x48, or 'any'",
    "depends_on: [jarvis]": "depends_on: goes in a circle: jarvis -> jarvis",
    "instruction: You are jarvis.": (
        "instruction: stands beside module; an agent has one of module, instruction, instruction_file and card"
    ),
    "max_cost_per_call: 0.5": (
        "max_cost_per_call: limits nothing without prices; add those of its models to gateway.prices"
    ),
    "modle: openai.gpt-5": "modle: unknown key (did you mean 'model'?)",
    "default_params:\n      temperature: 3\n      stop: [a, b, c, d, e]\n      seed: soon": (
        "6: default_params.temperature: must be at most 2",
        "7: default_params.stop: must be 1 to 4 texts",
        "8: default_params.seed: must be a whole number",
    ),
    "default_params:\n      topP: 3\n      max_tokens: 1\n      maxTokens: 1\n      topk: 1": (
        "6: default_params.topP: must be at most 1",
        "8: default_params.maxTokens: is another name of 'max_tokens', which is given as well; keep one of them",
        "9: default_params.topk: unknown key (did you mean 'top_k'?)",
    ),
    "caller_params: {names: [messages], extras: [enable_search]}": (
        f"caller_params.names.0: must be {NAMES}",
        "caller_params.extras: unknown key (did you mean 'extra'?)",
    ),
    "caller_params:\n      extra: [Messages, temperature, base_url, '']": (
        "6: caller_params.extra.0: 'Messages' is set by the gateway or by a parameter of its own; callers cannot "
        "have it here",
        "6: caller_params.extra.1: 'temperature' is set by the gateway or by a parameter of its own; callers cannot "
        "have it here",
        "6: caller_params.extra.2: 'base_url' is set by the gateway or by a parameter of its own; callers cannot "
        "have it here",
        "6: caller_params.extra.3: must not be empty",
    ),
    "model_capabilities:\n      visoin: true": "6: model_capabilities.visoin: unknown key (did you mean 'vision'?)",
    "icons:\n      - src: a.png\n        size: any": "7: icons.0.size: unknown key (did you mean 'sizes'?)",
    "tool_limits: {search: 1, a/b: 2}": (
        "tool_limits.search: must be a glob over `server/tool`, such as `search/*`; `local/tool` for functions of the "
        "agent"
    ),
    "tasks: required": "tasks: requires 'gateway.tasks', which switches tasks on",
    "icon: a\n    icons: [{src: b}]": "6: icons: give either icon or icons, not both",
    "depends_on: [b]\n  b:\n    module: m\n    depends_on: [jarvis]": (
        "depends_on: goes in a circle: jarvis -> b -> jarvis"
    ),
}
IN_INSTRUCTED: Told = {
    "agents: [b]\n  b:\n    module: m\n    depends_on: [jarvis]": "agents: goes in a circle: jarvis -> b -> jarvis",
    "agents: [b.c]\n  b.c:\n    module: m": (
        "agents: 'b.c' would be part of a tool's name, in which models take no '.'; rename that agent"
    ),
    "agent: jarvis": "agent: goes with module or card; with instruction there is only one agent",
    "servers: [argos]\n    tools:\n    # - argos__search": (
        "6: tools: is empty; remove it to allow every tool of its servers, or write [] to allow none"
    ),
    "servers: [argos]\n    tools:\n    - argos__*\n    - search\n    - agros__search": (
        "8: tools: 'search' must be written as the agent sees it, server__tool",
        "9: tools: 'agros__search' is of no server or sub-agent of this agent (did you mean 'argos'?)",
    ),
    "approve: [files/x, '*/delete_*', destructive, local/x, jarvi/*]\n    tool_limits: {fil*/x: 1}": (
        "approve: 'files/x' is of no server or agent of this project",
        "approve: 'jarvi/*' is of no server or agent of this project (did you mean 'jarvis'?)",
        "6: tool_limits: 'fil*/x' is of no server or agent of this project",
    ),
}
IN_GATEWAY: Told = {
    **{
        f"audit_log: {value}": f"audit_log: '{value}' is neither syslog:HOST:PORT nor syslog:/PATH"
        for value in ("syslog:log.example.com", "syslog::514", "syslog:log:high")
    },
    "database: sqlite:///a.db\n  threads: sqlite:///b.db": (
        "7: threads: is another name of 'database', which is given as well; keep one of them"
    ),
    **{
        f"trace_url: {value}": (
            "trace_url: must be an http:// or https:// URL that contains {trace_id}, without a user or password"
        )
        for value in (
            "https://jaeger.example.com/trace",
            "'javascript:alert({trace_id})'",
            "'https://ann:pw@jaeger.example.com/{trace_id}'",
        )
    },
    **{
        f"limits:\n    rules: [{{caller: '{caller}', calls_at_once: 1}}]": (
            f"7: limits.rules.0.caller: '{caller}' matches no caller; callers are key:{caller} or token:{caller}, and "
            "anonymous"
        )
        for caller in ("team-a", "key", "key:", "Key:a", "bo*", "anonymou", "anonymous-*")
    },
    "auth:\n    jwt:\n      issuer: http://login.example.com\n      jwks_uri: http://127.0.0.1.example.com/jwks\n"
    "      authorization_servers: [https://a, http://localhost.example.com]": (
        f"8: auth.jwt.issuer: {CLEAR_TEXT}",
        f"9: auth.jwt.jwks_uri: {CLEAR_TEXT}",
        f"10: auth.jwt.authorization_servers.1: {CLEAR_TEXT}",
    ),
    **{
        f"auth:\n    tokens:\n      - {{name: ci, sha256: {value}}}": (
            "8: auth.tokens.0.sha256: must be a SHA-256 hash of 64 hexadecimal digits in quotes, or a list of a new "
            "and an old one; 'pallas-gateway token new NAME' makes one"
        )
        for value in ("pgw_secret", "1" * 64, [f"{'a' * 64}"] * 3, [])
    },
    f"auth:\n    tokens:\n      - {{name: ci, key: pgw_secret, sha256: {'a' * 64}}}": (
        "8: auth.tokens.0.key: unknown key; only its hash stands here, as sha256: 'pallas-gateway token new NAME' "
        "makes both"
    ),
    "perport: true": "perport: unknown key (did you mean 'per_port'?)",
    "tokens: []": "tokens: unknown key; it belongs under gateway.auth",
    "namespace: com.example": "namespace: unknown key; it belongs beside gateway",
    "queue_seconds: true": "queue_seconds: must be a number",
    "state_keys: [short]": "state_keys.0: must have at least 32 bytes, such as those of `openssl rand -hex 32`",
    "drain_seconds: .inf": "drain_seconds: must be a finite number",
    "per_port: 1": "per_port: must be true or false",
    "port: 65536": "port: must be at most 65535",
    "host: box:80": f"host: {HOST}",
    "public_url: /pallas": f"public_url: {URL}",
    "public_url: ftp://a": f"public_url: {URL}",
    "public_url: http://a?b=c": f"public_url: {URL}",
    "public_url: http://a:b": f"public_url: {URL}",
    "database: mysql://gateway:secret@db/threads": f"database: {DATABASE}",
    "threads: postgresql://gateway:secret@db": f"threads: {DATABASE}",
    "database: sqlite://a": f"database: {DATABASE}",
    'database: "sqlite:///:memory:"': "database: must be a file: other processes cannot read memory",
    "threads_lease_seconds: 0.5": "threads_lease_seconds: must be at least 1",
    "tool_names: []": "tool_names: must have at least one entry",
    "tool_names: [a, a]": "tool_names: 'a' stands twice",
    'tool_names: ["{name}"]': (
        "tool_names.0: '{name}' may hold only letters, digits, '_', '.', '-' and the placeholder {agent}"
    ),
    "tool_names: [get_health]": "tool_names.0: 'get_health' is the health tool; choose another name",
    'tool_names: [ask_jarvis, "ask_{agent}"]': "tool_names: agent 'jarvis' would have two tools named 'ask_jarvis'",
    "auth:": "auth: is empty; remove it to let anyone call, or write {} to require a token",
    "database: sqlite:///a.db\n  agents_may_use: {model: [a]}": (
        "7: agents_may_use.model: unknown key (did you mean 'models'?)"
    ),
    "auth:\n    sha256: a": "7: auth.sha256: unknown key; it belongs in an entry of gateway.auth.tokens",
    "tls:\n    certfile: agents.yaml": "tls.keyfile: is required",
    "tls:\n    certfile: c.pem\n    keyfile: agents.yaml": (
        "7: tls.certfile: no file 'c.pem' in the folder of agents.yaml"
    ),
    "tls:\n    certfile: c.pem\n    keyfile: k.pem": (
        "7: tls.certfile: no file 'c.pem' in the folder of agents.yaml",
        "8: tls.keyfile: no file 'k.pem' in the folder of agents.yaml",
    ),
    "tls:\n    certfile: c.pem\n    keyfile: c.pem": "7: tls.certfile: no file 'c.pem' in the folder of agents.yaml",
    "agents_may_use: {models: ['*']}": (
        "agents_may_use: requires 'gateway.database', the database in which these agents are"
    ),
    "tasks:\n    ttl_seconds: 60": (
        "tasks: requires 'gateway.database', the database in which tasks are",
        "7: tasks.ttl_seconds: is less than ask_seconds (86400): a task would expire before its questions",
    ),
    "limits:\n    store: database": (
        "7: limits.store: requires 'gateway.database', the database in which the counters are"
    ),
    "audit_log: audit.log\n  audit_names: hashed": (
        "7: audit_names: 'hashed' requires 'gateway.state_keys', by the first of which names are hashed"
    ),
    "audit_required: true": "audit_required: requires 'gateway.audit_log', which says where lines are written",
    "trusted_proxies: [10.0.0.7/8, '::ffff:10.0.0.7']": (
        "trusted_proxies.0: '10.0.0.7/8' is an address within 10.0.0.0/8; write either 10.0.0.7 or 10.0.0.0/8",
        f"trusted_proxies.1: '::ffff:10.0.0.7' is IPv4 in the form of IPv6, which never matches; {PROXY}",
    ),
    "auth:\n    anonymous: [run:agent]": (
        "7: auth.anonymous.0: 'run:agent' is no grant; grants are view:agents, run:agents, view:instructions, "
        "edit:agents and delete:agents, each alone or with :NAME, create:agents, view:metrics, view:gateway, "
        "view:calls and cancel:calls"
    ),
    "auth:\n    jwt:\n      issuer: https://a\n      jwks_uri: https://a\n      algorithms: [HS256]": (
        "10: auth.jwt.algorithms.0: 'HS256' is not one of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, "
        "ES512, EdDSA, Ed25519"
    ),
    "auth:\n    jwt:\n      issuer: https://me:pw@login.example\n      jwks_uri: https://me@127.0.0.1/": (
        f"8: auth.jwt.issuer: {USER}",
        f"9: auth.jwt.jwks_uri: {USER}",
    ),
    "auth:\n    console_client_id: pallas\n    console_scopes: [openid, 'run agents']": (
        "7: auth.console_client_id: requires 'gateway.auth.jwt', the authorization server at which people sign in",
        "8: auth.console_scopes.1: 'run agents' is no scope: it may hold neither spaces, quotes nor backslashes",
    ),
    "auth:\n    console_client_id: pallas\n    jwt:\n      issuer: https://a?b=c\n      jwks_uri: https://a": (
        "9: auth.jwt.issuer: must have no query ('?') where people sign in: clients find the server's metadata by it "
        "(RFC 8414)"
    ),
    "auth:\n    jwt: {issuer: https://a, jwks_uri: https://a, leeway_seconds: 3600}": (
        "7: auth.jwt.leeway_seconds: must be at most 300"
    ),
    "auth:\n    jwt: {issuer: login.example.com}\n    registry: closed": (
        "7: auth.jwt.issuer: must be an absolute http:// or https:// URL",
        "7: auth.jwt.jwks_uri: is required",
        "8: auth.registry: must be 'open' or 'filtered'",
    ),
}


def told(table: Told, before: str = "", after: str = "\n", line: str = "", path: str = "") -> Iterator[Mistake]:
    """The mistakes of a table, whose texts stand in line `line` of the file, below `path`."""
    for text, problems in table.items():
        each = [problems] if isinstance(problems, str) else problems
        placed = [one.split(": ", 1) if one.partition(":")[0].isdigit() else (line, one) for one in each]
        found = [f"agents.yaml{number and f':{number}'}: {path}{what}" for number, what in placed]
        yield Mistake(text, f"{before}{text}{after}", found)


LINES = [
    *told(FILES, after=""),
    *told(AT_TOP, ONE, line="5"),
    *told(IN_AGENT, f"{ONE}    ", line="5", path="agents.jarvis."),
    *told(IN_INSTRUCTED, f"{DECLARED}    ", line="5", path="agents.jarvis."),
    *told(IN_GATEWAY, f"{GATEWAY}  ", line="6", path="gateway."),
]


@pytest.mark.parametrize("mistake", [*MISTAKES, *LINES], ids=lambda mistake: mistake.name)
def test_every_mistake_is_reported_with_its_place_and_what_to_do(
    mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("agents.yaml").write_text(mistake.yaml)
    with pytest.raises(ConfigurationError) as caught:
        load_deployment(Path("agents.yaml"), environ=mistake.environ, overrides=mistake.overrides)
    assert [str(problem) for problem in caught.value.problems] == mistake.problems
    assert str(caught.value) == "\n".join(mistake.problems)
    assert caught.value.reason == "bad_configuration"


@pytest.mark.parametrize(
    ("text", "agents"),
    [
        (ONE, ["jarvis"]),
        (ONE + "    port: many\n", ["jarvis"]),  # what is right is there to look for more problems
        ("name: demo\nagents: [\n", None),
        ("name: demo\nagents: 3\n", None),
    ],
)
def test_what_can_be_read_of_a_bad_configuration_is_there_with_its_problems(
    text: str, agents: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("agents.yaml").write_text(text)
    loaded = read_deployment(Path("agents.yaml"), environ={})
    assert (loaded.configuration and list(loaded.configuration.deployment.agents)) == agents
    assert bool(loaded.problems) == (text != ONE)
    if loaded.problems:
        with pytest.raises(ConfigurationError) as caught:
            loaded.usable()
        assert caught.value.problems == loaded.problems
    else:
        assert loaded.usable() is loaded.configuration


def problems_at(path: Path) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load_deployment(path, environ={})
    return [str(problem) for problem in caught.value.problems]


def test_a_missing_file_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert problems_at(Path("agents.yaml")) == [
        "agents.yaml: no such file; 'pallas-gateway init' makes a project; --config or PALLAS_AGENTS_CONFIG names "
        "another file"
    ]


def test_a_directory_is_not_a_file(tmp_path: Path) -> None:
    assert problems_at(tmp_path) == [f"{tmp_path}: is a directory, not a file"]


def test_a_file_in_another_encoding_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("agents.yaml").write_bytes("name: Müller\n".encode("latin-1"))
    assert problems_at(Path("agents.yaml")) == ["agents.yaml: is not UTF-8 text; save it as UTF-8"]


def test_absurd_nesting_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("agents.yaml").write_text("name: " + "[" * 5000)
    assert problems_at(Path("agents.yaml")) == ["agents.yaml: is nested too deeply"]


def test_all_mistakes_of_all_files_come_at_once_in_reading_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("agents.yaml").write_text(
        "name: demo\n"
        "gateway: {per_port: perhaps}\n"
        "agents:\n"
        "  jarvis: {modul: agents.jarvis, port: 8201, depends_on: [serch]}\n"
        "  search: {module: '${MODULE}', port: 8201}\n"
    )
    Path("fastagent.config.yaml").write_text("model_capabilities: {vision: maybe}\n")
    assert problems_at(Path("agents.yaml")) == [
        "agents.yaml:2: gateway.per_port: must be true or false",
        "agents.yaml:4: agents.jarvis.modul: unknown key (did you mean 'module'?)",
        f"agents.yaml:4: agents.jarvis: {NOTHING}",
        "agents.yaml:4: agents.jarvis.depends_on: no agent 'serch' (did you mean 'search'?)",
        "agents.yaml:5: agents.search.module: environment variable MODULE is not set; set it, or write "
        "${MODULE:-default}",
        "agents.yaml:5: agents.search.port: port 8201 is already taken by agents.jarvis",
        "fastagent.config.yaml:1: model_capabilities.vision: must be true or false",
    ]


def test_a_broken_file_does_not_hide_the_other_ones_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("agents.yaml").write_text("name: [\n")
    Path("fastagent.config.yaml").write_text("mcp: {\n")
    assert [problem.split(": ")[0] for problem in problems_at(Path("agents.yaml"))] == [
        "agents.yaml:2",
        "fastagent.config.yaml:2",
    ]
