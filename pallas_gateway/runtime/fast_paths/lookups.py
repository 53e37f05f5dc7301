"""Known results of lookups that fast-agent repeats for every instance, turn and start.

Types, settings, displays, texts and keys save 1 to 3 % of a plain call each, together an eighth. The folders of
skills, the variables of the environment and the files of settings save half of the start of an agent after the first.
"""

from __future__ import annotations

import os
from copy import deepcopy
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fast_agent.agents
import fast_agent.config
import fast_agent.paths
import yaml
from fast_agent.agents import tool_agent
from fast_agent.agents.llm_agent import LlmAgent
from fast_agent.agents.llm_decorator import LlmDecorator
from fast_agent.agents.mcp_agent import McpAgent
from fast_agent.agents.tool_agent import ToolAgent
from fast_agent.config import Settings, _WithoutAmbiguousHomeSource
from fast_agent.core import instruction_utils, model_resolution
from fast_agent.core.instruction import InstructionBuilder
from fast_agent.llm import provider_key_manager
from fast_agent.skills import registry
from fast_agent.ui import message_display_helpers
from fast_agent.ui.console_display import ConsoleDisplay
from mcp_types import TextContent
from pydantic import BaseModel

from pallas_gateway.config.loading.fastagent_file import settings_files
from pallas_gateway.file_stamps import stamps

if TYPE_CHECKING:
    from types import ModuleType

    from fast_agent.config import LoggerSettings

    from pallas_gateway.runtime.compat.requirements import ReliedOn

IMPLEMENTATIONS: tuple[tuple[ModuleType, str, type], ...] = (
    (instruction_utils, "McpInstructionCapable", McpAgent),
    (instruction_utils, "LlmInstructionContextAgent", LlmDecorator),
    (tool_agent, "ToolRunnerHookCapable", ToolAgent),
    (model_resolution, "_ModelReferencesConfig", Settings),
    (message_display_helpers, "_MetadataContent", TextContent),
)
"""A module, a `Protocol` that it checks instances against, and a class whose instances all fulfil the protocol."""
_WITH_DEFAULT_FOLDERS: tuple[Any, ...] = (fast_agent.paths, registry)
_MOST_ENVIRONMENTS = 8
"""Most sets of variables whose values are kept; there are two, of the process and of its `.env`."""
RELIED_ON: ReliedOn = (
    (fast_agent.config, "_cached_settings_match_environment_request", ("settings", "home", "no_home")),
    (ConsoleDisplay, "_apply_console_theme", ("self",)),
    (ConsoleDisplay, "_resolve_logger_settings", ("config",)),
    (InstructionBuilder, "build", ("self",)),
    (InstructionBuilder, "_template", ()),
    (LlmAgent, "_display_user_messages", ()),
    (LlmAgent, "show_assistant_message", ()),
    (McpAgent, "show_assistant_message", ()),
    (provider_key_manager, "_get_config_value", ("config", "key")),
    (_WithoutAmbiguousHomeSource, "__call__", ("self",)),
    (fast_agent.config, "load_yaml_mapping", ("path",)),
    (fast_agent.config, "resolve_env_vars", ("config_item",)),
    (fast_agent.config, "get_settings", ("config_path", "home", "no_home")),
    *((module, "default_skill_paths", ("settings", "cwd", "override")) for module in _WITH_DEFAULT_FOLDERS),
    *((module, protocol, ()) for module, protocol, _ in IMPLEMENTATIONS),
)


def install() -> None:
    """Replace fast-agent's functions."""
    _know_implementations()
    _keep_settings()
    _draw_nothing()
    _keep_plain_texts()
    vars(fast_agent.agents)["McpAgent"] = McpAgent  # otherwise each instance imports it by `__getattr__`
    _read_keys_from_fields()
    _know_default_folders()
    _read_variables_once()
    _read_yaml_in_c()
    _read_shared_settings_once()


def _know_implementations() -> None:
    """`isinstance` compares with the class first; with the protocol alone, it looks up each of its attributes."""
    for module, name, implementation in IMPLEMENTATIONS:
        protocol = getattr(module, name)
        if not isinstance(protocol, tuple):
            setattr(module, name, (implementation, protocol))


def _keep_settings() -> None:
    """The settings of a started agent stay; fast-agent resolves their files again to see if they still fit."""
    original = fast_agent.config._cached_settings_match_environment_request

    @wraps(original)
    def match(settings: Settings, *, home: Any, no_home: bool) -> bool:
        return (home is None and not no_home) or original(settings, home=home, no_home=no_home)

    fast_agent.config._cached_settings_match_environment_request = match


def _draw_nothing() -> None:
    """Each agent of an instance has three displays, and the gateway's consoles print none of them."""
    original = ConsoleDisplay._resolve_logger_settings

    def resolve_logger_settings(config: Any) -> LoggerSettings:
        return config.logger if isinstance(config, Settings) else original(config)

    def apply_console_theme(self: ConsoleDisplay) -> None:
        """Do nothing."""

    async def show_nothing(self: LlmAgent, *message: Any, **options: Any) -> None:
        """Do nothing."""

    def show_no_user(self: LlmAgent, *messages: Any, **options: Any) -> None:
        """Do nothing."""

    LlmAgent._display_user_messages = show_no_user  # type: ignore[method-assign]
    LlmAgent.show_assistant_message = show_nothing  # type: ignore[method-assign]
    McpAgent.show_assistant_message = show_nothing  # type: ignore[method-assign]
    ConsoleDisplay._resolve_logger_settings = staticmethod(resolve_logger_settings)  # type: ignore[method-assign]
    ConsoleDisplay._apply_console_theme = apply_console_theme  # type: ignore[method-assign]


def _keep_plain_texts() -> None:
    """fast-agent searches an instruction for each placeholder, twice for each instance."""
    original = InstructionBuilder.build

    @wraps(original)
    async def build(self: InstructionBuilder) -> str:
        text = self._template
        return await original(self) if "{{" in text or "}}" in text else text

    InstructionBuilder.build = build  # type: ignore[method-assign]


def _read_keys_from_fields() -> None:
    """fast-agent dumps all settings at every turn to read a provider's key."""
    original = provider_key_manager._get_config_value

    @wraps(original)
    def get_config_value(config: object, key: str) -> object | None:
        return getattr(config, key, None) if isinstance(config, BaseModel) else original(config, key)

    provider_key_manager._get_config_value = get_config_value


def _know_default_folders() -> None:
    """Three times in a start, fast-agent makes default settings for their `home`, which no variable sets."""
    original = fast_agent.paths.default_skill_paths
    defaults = Settings.model_construct()

    @wraps(original)
    def default_skill_paths(settings: Settings | None = None, **options: Any) -> list[Path]:
        return original(settings or defaults, **options)

    for module in _WITH_DEFAULT_FOLDERS:
        module.default_skill_paths = default_skill_paths


def _read_variables_once() -> None:
    """For each new `Settings`, pydantic searches the variables for each field; the result depends on both only."""
    source: Any = _WithoutAmbiguousHomeSource
    original = source.__call__
    known: dict[object, dict[str, Any]] = {}

    @wraps(original)
    def values(self: Any) -> dict[str, Any]:
        variables = (type(self._source), self._source.settings_cls, tuple(self._source.env_vars.items()))
        if variables not in known:
            if len(known) >= _MOST_ENVIRONMENTS:
                known.clear()
            known[variables] = original(self)
        return deepcopy(known[variables])

    source.__call__ = values


def _read_yaml_in_c() -> None:
    """fast-agent parses each file of settings in Python, which takes ten times as long as libyaml."""
    original = fast_agent.config.load_yaml_mapping
    if not yaml.__with_libyaml__:
        return

    @wraps(original)
    def load_yaml_mapping(path: Path | None) -> dict[str, Any]:
        if path is None or not path.exists():
            return {}
        try:
            loaded = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
        except Exception:  # noqa: BLE001  fast-agent reports what is wrong with the file
            return original(path)
        return fast_agent.config.resolve_env_vars(loaded) if isinstance(loaded, dict) else {}

    fast_agent.config.load_yaml_mapping = load_yaml_mapping


def _read_shared_settings_once() -> None:
    """Each agent's start reads the settings of the working directory, for placeholders of instructions."""
    original, config = fast_agent.config.get_settings, fast_agent.config
    read: dict[object, Settings] = {}

    @wraps(original)
    def get_settings(config_path: Any = None, *, home: Any = None, no_home: bool = False) -> Settings:
        present = config._settings
        are_present = present and config._cached_settings_match_environment_request(present, home=home, no_home=no_home)
        if config_path or home is not None or not no_home or are_present:
            return original(config_path, home=home, no_home=no_home)
        now = (Path.cwd(), tuple(stamps(settings_files(None)).items()), tuple(os.environ.items()))
        if now not in read:
            read.clear()
            read[now] = original(no_home=True)
        config._settings = read[now]
        return read[now]

    config.get_settings = get_settings
