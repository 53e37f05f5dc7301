"""What fast-agent finds out anew for every instance though it cannot have changed since the agent started: once.

An agent whose settings, model or files change is started anew (`runtime/origin.py`), and all of this with it.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

import fast_agent.config
from fast_agent.config import Settings
from fast_agent.core.fastagent import FastAgent
from fast_agent.ui.console_display import ConsoleDisplay

if TYPE_CHECKING:
    from collections.abc import Callable

    from fast_agent.config import LoggerSettings

RELIED_ON: tuple[tuple[Any, str, tuple[str, ...]], ...] = (
    (FastAgent, "_build_model_factory_func", ("self", "cli_model_override", "model_endpoint_override")),
    (fast_agent.config, "_cached_settings_match_environment_request", ("settings", "home", "no_home")),
    (ConsoleDisplay, "_apply_console_theme", ("self",)),
    (ConsoleDisplay, "_resolve_logger_settings", ("config",)),
)
"""As in `runtime/platform.py`, which checks them."""


def save() -> None:
    """Replace what costs and is the same every time."""
    _resolve_models_once()
    _believe_the_settings()
    _draw_nothing()


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

    ConsoleDisplay._resolve_logger_settings = staticmethod(resolve_logger_settings)  # type: ignore[method-assign]
    ConsoleDisplay._apply_console_theme = apply_console_theme  # type: ignore[method-assign]
