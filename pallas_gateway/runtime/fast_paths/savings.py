"""What fast-agent does for every instance and every turn, to no other effect: done once, in short, or not at all.

An agent whose settings, model or files change is started again (`loading/fingerprint.py`), with what is remembered.
"""

from __future__ import annotations

from copy import copy
from functools import wraps
from typing import TYPE_CHECKING, Any

import fast_agent.config
from fast_agent.agents import tool_agent
from fast_agent.agents.llm_agent import LlmAgent
from fast_agent.agents.llm_decorator import LlmDecorator
from fast_agent.agents.mcp_agent import McpAgent
from fast_agent.agents.tool_agent import ToolAgent
from fast_agent.config import Settings
from fast_agent.constants import DEFAULT_STREAMING_TIMEOUT
from fast_agent.core import instruction_utils, model_resolution
from fast_agent.core.fastagent import FastAgent
from fast_agent.llm import fastagent_llm, provider_key_manager
from fast_agent.llm.fastagent_llm import FastAgentLLM
from fast_agent.types import PromptMessageExtended, RequestParams
from fast_agent.ui import message_display_helpers
from fast_agent.ui.console_display import ConsoleDisplay
from mcp_types import TextContent
from pydantic import BaseModel

from pallas_gateway.runtime.compat import engine_log
from pallas_gateway.runtime.fast_paths.deep_copies import fast_deepcopy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from fast_agent.config import LoggerSettings
    from fast_agent.llm.reasoning_effort import ReasoningEffortSetting

    from pallas_gateway.runtime.compat.requirements import ReliedOn

_PLAIN = frozenset({str, int, float, bool})
_MADE_ANEW = ("messages", "template_vars")
_DUMPED = frozenset(name for name, field in RequestParams.model_fields.items() if not field.exclude)
_DUMPED_AUTOMATICALLY = _DUMPED - {"streaming_timeout"}
HAVE: tuple[tuple[ModuleType, str, type], ...] = (
    (instruction_utils, "McpInstructionCapable", McpAgent),
    (instruction_utils, "LlmInstructionContextAgent", LlmDecorator),
    (tool_agent, "ToolRunnerHookCapable", ToolAgent),
    (model_resolution, "_ModelReferencesConfig", Settings),
    (message_display_helpers, "_MetadataContent", TextContent),
)
"""A module, a `Protocol` by which it tells objects apart, and a class all of whose instances have what that wants."""
RELIED_ON: ReliedOn = (
    (FastAgent, "_build_model_factory_func", ("self", "cli_model_override", "model_endpoint_override")),
    (fast_agent.config, "_cached_settings_match_environment_request", ("settings", "home", "no_home")),
    (ConsoleDisplay, "_apply_console_theme", ("self",)),
    (ConsoleDisplay, "_resolve_logger_settings", ("config",)),
    (LlmAgent, "show_assistant_message", ()),
    (McpAgent, "show_assistant_message", ()),
    (provider_key_manager, "_get_config_value", ("config", "key")),
    (fastagent_llm, "merge_request_params", ("default_params", "provided_params")),
    (fastagent_llm, "apply_reasoning_streaming_timeout", ("params", "reasoning")),
    (FastAgentLLM, "_update_streaming_progress", ("self", "content", "model", "estimated_tokens")),
    *((module, protocol, ()) for module, protocol, _ in HAVE),
)


def save() -> None:
    """Replace what costs and is the same every time."""
    _resolve_models_once()
    _believe_the_settings()
    _draw_nothing()
    _read_keys_without_a_dump()
    _merge_parameters_plainly()
    _copy_plainly()
    _count_quietly()
    _know_what_agents_have()


def _resolve_models_once() -> None:
    """Which provider and which class a model means: read from files of overlays and from the environment."""
    original = FastAgent._build_model_factory_func

    @wraps(original)  # so that the check still finds what it looks for
    def build_model_factory_func(self: FastAgent, *arguments: Any, **options: Any) -> Any:
        return remembering(original(self, *arguments, **options))

    FastAgent._build_model_factory_func = build_model_factory_func  # type: ignore[method-assign]


def remembering(find: Callable[..., Any]) -> Callable[..., Any]:
    """`find` for a model and request parameters; what it found for a model alone is remembered."""
    found: dict[Any, Any] = {}

    def model_factory(model: Any = None, request_params: Any = None) -> Any:
        if request_params is not None or not (model is None or isinstance(model, str)):
            return find(model=model, request_params=request_params)
        if model not in found:
            found[model] = find(model=model)
        return found[model]

    return model_factory


def _believe_the_settings() -> None:
    """The process-wide settings are those of an agent that was started; whether they still fit is asked of the disk."""
    original = fast_agent.config._cached_settings_match_environment_request

    @wraps(original)
    def match(settings: Settings, *, home: Any, no_home: bool) -> bool:
        is_as_it_is = home is None and not no_home
        return is_as_it_is or original(settings, home=home, no_home=no_home)

    fast_agent.config._cached_settings_match_environment_request = match


def _draw_nothing() -> None:
    """Three displays are made for each agent of an instance; their consoles are quiet."""
    original = ConsoleDisplay._resolve_logger_settings

    def resolve_logger_settings(config: Any) -> LoggerSettings:
        return config.logger if isinstance(config, Settings) else original(config)

    def apply_console_theme(self: ConsoleDisplay) -> None:
        """Nothing: a theme colours what nobody sees."""

    async def show_nothing(self: LlmAgent, *message: Any, **how: Any) -> None:
        """Nothing, in place of the work to lay out what is not shown."""

    LlmAgent.show_assistant_message = show_nothing  # type: ignore[method-assign]
    McpAgent.show_assistant_message = show_nothing  # type: ignore[method-assign]
    ConsoleDisplay._resolve_logger_settings = staticmethod(resolve_logger_settings)  # type: ignore[method-assign]
    ConsoleDisplay._apply_console_theme = apply_console_theme  # type: ignore[method-assign]


def _read_keys_without_a_dump() -> None:
    """A provider's key is looked up at every turn, in a copy of all settings."""
    original = provider_key_manager._get_config_value

    @wraps(original)
    def get_config_value(config: object, key: str) -> object | None:
        return getattr(config, key, None) if isinstance(config, BaseModel) else original(config, key)

    provider_key_manager._get_config_value = get_config_value


def _merge_parameters_plainly() -> None:
    turns: Any = fastagent_llm
    turns.merge_request_params = merging_plainly(turns.merge_request_params)
    turns.apply_reasoning_streaming_timeout = timed_in_place(turns.apply_reasoning_streaming_timeout)


def merging_plainly(
    merge: Callable[[RequestParams, RequestParams], RequestParams],
) -> Callable[[RequestParams, RequestParams], RequestParams]:
    """`merge_request_params`, nine times a turn, without taking both apart and checking the whole anew.

    Only where there is nothing nested to merge; the rest is merged as ever.
    """

    @wraps(merge)
    def merge_request_params(default_params: RequestParams, provided_params: RequestParams) -> RequestParams:
        default, provided, given = default_params.__dict__, provided_params.__dict__, provided_params.model_fields_set
        if provided_params.model_extra or not _are_plain(provided) or not _are_plain(default):
            return merge(default_params, provided_params)
        values = {**default, **{name: provided[name] for name in given}, "messages": [], "template_vars": {}}
        is_automatic = "streaming_timeout" not in default_params.model_fields_set | given
        return _made(default_params, values, _DUMPED_AUTOMATICALLY if is_automatic else _DUMPED)

    return merge_request_params


def _are_plain(params: Mapping[str, Any]) -> bool:
    """Whether none holds anything that could change, but for those that are made anew, which must be empty."""
    for name, value in params.items():
        if value is not None and type(value) not in _PLAIN and (value or name not in _MADE_ANEW):
            return False
    return True


def _made(like: RequestParams, values: dict[str, Any], given: frozenset[str]) -> RequestParams:
    """As `model_copy` makes one."""
    params = type(like).__new__(type(like))
    object.__setattr__(params, "__dict__", values)
    object.__setattr__(params, "__pydantic_extra__", copy(like.__pydantic_extra__))
    object.__setattr__(params, "__pydantic_fields_set__", set(given))
    object.__setattr__(params, "__pydantic_private__", None)
    return params


def timed_in_place(
    apply: Callable[[RequestParams, ReasoningEffortSetting | None], RequestParams],
) -> Callable[[RequestParams, ReasoningEffortSetting | None], RequestParams]:
    """`apply_reasoning_streaming_timeout` for parameters that were just made and belong to nobody yet: no copy more."""

    @wraps(apply)
    def apply_reasoning_streaming_timeout(
        params: RequestParams, reasoning: ReasoningEffortSetting | None
    ) -> RequestParams:
        if reasoning is not None:
            return apply(params, reasoning)
        if "streaming_timeout" not in params.model_fields_set:
            params.__dict__["streaming_timeout"] = DEFAULT_STREAMING_TIMEOUT
        return params

    return apply_reasoning_streaming_timeout


def _copy_plainly() -> None:
    for model in (PromptMessageExtended, TextContent, RequestParams):
        model.__deepcopy__ = fast_deepcopy  # type: ignore[method-assign,assignment]


def _count_quietly() -> None:
    """How far a streamed answer is, is told with each piece of it, to nobody unless the log is for debugging."""
    original = FastAgentLLM._update_streaming_progress

    @wraps(original)
    def update_streaming_progress(self: Any, content: str, model: str, estimated_tokens: int) -> int:
        if engine_log.is_debugging():
            return original(self, content, model, estimated_tokens)
        return estimated_tokens + max(1, len(content) // 4)

    FastAgentLLM._update_streaming_progress = update_streaming_progress  # type: ignore[method-assign]


def _know_what_agents_have() -> None:
    """Whether an object has what a `Protocol` lists is looked up attribute by attribute, unless its class is known."""
    for module, name, known in HAVE:
        protocol = getattr(module, name)
        if not isinstance(protocol, tuple):
            setattr(module, name, (known, protocol))  # `isinstance` takes the first that fits
