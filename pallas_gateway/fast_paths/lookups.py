"""Known results of lookups that fast-agent repeats for every instance and turn.

Types, settings, displays, texts, keys and models save 1 to 3 % of a plain call each.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import wraps
from pkgutil import resolve_name
from typing import Any

from opentelemetry.trace import NonRecordingSpan, get_current_span
from pydantic import BaseModel

from pallas_gateway.changes.change import FAST_PATH, Change, Name

_MCP_AGENT = "fast_agent.agents.mcp_agent:McpAgent"
_LLM_AGENT = "fast_agent.agents.llm_agent:LlmAgent"
_SETTINGS = "fast_agent.config:Settings"
_DISPLAY = "fast_agent.ui.console_display:ConsoleDisplay"
_SPANNING = ("fast_agent.", "mcp-python-sdk")
_BUILDER = "fast_agent.core.instruction:InstructionBuilder"
_DIRECTIVE = "fast_agent.agents.subagent_directive"
_FACTORY = "fast_agent.core.direct_factory"
IMPLEMENTATIONS = {
    "fast_agent.core.instruction_utils:McpInstructionCapable": _MCP_AGENT,
    "fast_agent.core.instruction_utils:LlmInstructionContextAgent": "fast_agent.agents.llm_decorator:LlmDecorator",
    "fast_agent.agents.tool_agent:ToolRunnerHookCapable": "fast_agent.agents.tool_agent:ToolAgent",
    "fast_agent.core.model_resolution:_ModelReferencesConfig": _SETTINGS,
    "fast_agent.ui.message_display_helpers:_MetadataContent": "mcp_types:TextContent",
}
"""A `Protocol` that instances are checked against, and a class whose instances all fulfil the protocol."""
CHANGE = Change(
    "lookups",
    FAST_PATH,
    ("fast-agent-mcp", "pydantic"),
    replaces=(
        *(Name(protocol, by="with_implementation") for protocol in IMPLEMENTATIONS),
        Name(
            "fast_agent.config:_cached_settings_match_environment_request",
            ("settings", "home", "no_home"),
            by="matching",
        ),
        # Each agent of an instance has three displays, and the gateway's consoles print none of them.
        Name(f"{_DISPLAY}._resolve_logger_settings", ("config",), by="taking_the_logger"),
        Name(f"{_DISPLAY}._apply_console_theme", ("self",), by="doing_nothing"),
        Name(f"{_LLM_AGENT}._display_user_messages", by="doing_nothing"),
        Name(f"{_LLM_AGENT}.show_assistant_message", by="awaiting_nothing"),
        Name(f"{_MCP_AGENT}.show_assistant_message", by="awaiting_nothing"),
        # As JSON in a channel of each answer, for exports of sessions, which the gateway has not.
        Name("fast_agent.llm.fastagent_llm:FastAgentLLM._append_usage_channel", by="doing_nothing"),
        Name("opentelemetry.trace:ProxyTracer.start_as_current_span", by="spanning"),
        Name(f"{_BUILDER}.build", ("self",), by="building"),
        Name("fast_agent.llm.provider_key_manager:_get_config_value", ("config", "key"), by="reading_fields"),
        Name(
            f"{_FACTORY}:active_agents_in_dependency_group",
            ("app_instance", "agents_dict", "model_factory_func", "global_function_tools", "group", "active_agents"),
            by="making_those",
        ),
        Name("fast_agent.agents.mcp_agent:resolve_subagent_directive", ("instruction",), by="searching_for_its_name"),
        Name("fast_agent.llm.fastagent_llm:FastAgentLLM._get_model_params", ("self", "model_name"), by="remembering"),
    ),
    relies_on=(
        Name(f"{_BUILDER}._template"),
        Name("opentelemetry.trace:ProxyTracer._tracer"),
        Name("opentelemetry.trace:ProxyTracer._noop_tracer"),
        Name("opentelemetry.trace:ProxyTracer._instrumenting_module_name"),
        Name(f"{_DIRECTIVE}:SUBAGENT_DIRECTIVE"),
        Name(f"{_DIRECTIVE}:SubagentDirectiveResult.__init__", ("instruction", "subagent_instruction", "found")),
    ),
)


def install() -> None:
    """Keep `McpAgent` where each instance imports it by `__getattr__`."""
    import fast_agent.agents  # noqa: PLC0415  as late as the library

    vars(fast_agent.agents)["McpAgent"] = resolve_name(_MCP_AGENT)


def with_implementation(protocol: Any, holder: Any) -> tuple[Any, Any]:
    """`isinstance` compares with the class first; with the protocol alone, it looks up each of its attributes."""
    return resolve_name(IMPLEMENTATIONS[f"{holder.__name__}:{protocol.__name__}"]), protocol


def matching(original: Callable[..., bool], _: Any) -> Callable[..., bool]:
    """The settings of a started agent stay; fast-agent resolves their files again to see if they still fit."""

    @wraps(original)
    def match(settings: Any, *, home: Any, no_home: bool) -> bool:
        return (home is None and not no_home) or original(settings, home=home, no_home=no_home)

    return match


def taking_the_logger(original: Callable[[Any], Any], _: Any) -> Any:
    """Settings have the logger's as an attribute."""
    settings = resolve_name(_SETTINGS)
    return staticmethod(lambda config: config.logger if isinstance(config, settings) else original(config))


def doing_nothing(original: Any, _: Any) -> Callable[..., None]:
    """Show nothing."""
    return wraps(original)(lambda *_given, **_options: None)


def awaiting_nothing(original: Any, _: Any) -> Callable[..., Awaitable[None]]:
    """Show nothing, asynchronously."""

    @wraps(original)
    async def show(*_given: Any, **_options: Any) -> None: ...

    return show


def building(original: Callable[[Any], Awaitable[str]], _: Any) -> Callable[[Any], Awaitable[str]]:
    """fast-agent searches an instruction for each placeholder, twice for each instance."""

    @wraps(original)
    async def build(self: Any) -> str:
        text: str = self._template
        return await original(self) if "{{" in text or "}}" in text else text

    return build


def spanning(original: Callable[..., Any], _: Any) -> Callable[..., Any]:
    """Without a provider of tracers, a span of a library is the current one, if that records nothing either."""

    @wraps(original)
    def start_as_current_span(self: Any, *given: Any, context: Any = None, **options: Any) -> Any:
        is_needless = self._tracer is self._noop_tracer and self._instrumenting_module_name.startswith(_SPANNING)
        if is_needless and context is None and isinstance(current := get_current_span(), NonRecordingSpan):
            return nullcontext(current)
        return original(self, *given, context=context, **options)

    return start_as_current_span


def making_those(original: Callable[..., Awaitable[None]], holder: Any) -> Callable[..., Awaitable[None]]:
    """fast-agent makes the agents of each type in turn, also of the types that no agent has."""

    @wraps(original)
    async def active_agents_in_dependency_group(  # noqa: PLR0913, PLR0917  fast-agent's own parameters
        app: Any, agents: Any, factory: Any, tools: Any, group: list[str], active: dict[str, Any], **options: Any
    ) -> None:
        types = {name: holder.normalize_agent_type_value(agents[name].get("type")) for name in group}
        for kind in filter({*types.values()}.__contains__, holder.AgentType):
            those = {name: agents[name] for name in group if types[name] == kind}
            active.update(await holder.create_agents_by_type(app, those, kind, factory, active, tools, **options))

    return active_agents_in_dependency_group


def searching_for_its_name(original: Callable[[str], Any], _: Any) -> Callable[[str], Any]:
    """fast-agent looks three times for the parts of an instruction that are for subagents."""
    name, result = (
        resolve_name(f"{_DIRECTIVE}:SUBAGENT_DIRECTIVE"),
        resolve_name(f"{_DIRECTIVE}:SubagentDirectiveResult"),
    )

    @wraps(original)
    def resolve_subagent_directive(instruction: str) -> Any:
        return original(instruction) if name in instruction else result(instruction, instruction, found=False)

    return resolve_subagent_directive


def reading_fields(original: Callable[..., object], _: Any) -> Callable[..., object]:
    """fast-agent dumps all settings at every turn to read a provider's key."""

    @wraps(original)
    def get_config_value(config: object, key: str) -> object | None:
        return getattr(config, key, None) if isinstance(config, BaseModel) else original(config, key)

    return get_config_value


def remembering(original: Callable[..., object], _: Any) -> Callable[..., object]:
    """fast-agent looks up the parameters of a model six times a turn; its LLM serves one call."""

    @wraps(original)
    def get_model_params(self: Any, model_name: str | None) -> object:
        known: dict[str | None, object] = vars(self).setdefault("_pallas_models", {})
        if model_name not in known:
            known[model_name] = original(self, model_name)
        return known[model_name]

    return get_model_params
