"""`gateway.limits` and `gateway.prices` as frozen models: what callers may use, and what models cost.

The docstring under each field is its meaning in `docs/operate/configuration.md` and in the JSON Schema.
"""

from typing import Literal

from pydantic import Field, model_validator

from pallas_gateway.config.model.section import Section
from pallas_gateway.config.model.values import CallerGlob, Count, Flag, KeyName, Price, Text


class RuleSettings(Section):
    """One rule; every rule that matches a call applies."""

    name: KeyName | None = None
    """Name of the rule in refusals, metrics and the audit log. Default: `rule-1`, `rule-2` … by its place."""

    caller: CallerGlob = "*"
    """Glob over `key:NAME` (a static key), `token:NAME` (a JWT) and `anonymous`."""

    agent: Text = "*"
    """Glob over the agents' names."""

    per: Literal["caller", "agent", "caller_and_agent"] = "caller"
    """The owner of a counter: each caller, each agent, or each caller with each agent."""

    calls_per_minute: Count | None = None
    """Calls that may begin in any 60 seconds."""

    calls_at_once: Count | None = None
    """Calls that may run or wait at once."""

    tokens_per_day: Count | None = None
    """Input, cached input and output tokens of one day (UTC), those of nested calls included."""

    enforce: Flag = True
    """`false` counts and reports only; no call is refused or ended."""

    @model_validator(mode="after")
    def _limits_something(self) -> "RuleSettings":
        if self.calls_per_minute is None and self.calls_at_once is None and self.tokens_per_day is None:
            raise ValueError("limits nothing; add calls_per_minute, calls_at_once or tokens_per_day")
        return self


class LimitsSettings(Section):
    """Limits of what callers may use; see [limits.md](limits.md)."""

    store: Literal["database"] | None = None
    """`database`: the counters are in the database of `gateway.database` and shared by all gateways on it. Default: \
they are shared by the workers of this gateway."""

    when_store_is_away: Literal["count_alone", "refuse"] = "count_alone"
    """While that database is not available: `count_alone` counts the calls of this gateway, `refuse` refuses those \
that a rule matches."""

    rules: tuple[RuleSettings, ...] = ()
    """The rules."""

    @property
    def rule_names(self) -> tuple[str, ...]:
        """The names of the rules in their order."""
        return tuple(rule.name or f"rule-{place}" for place, rule in enumerate(self.rules, 1))


class PriceSettings(Section):
    """Prices of one model per million tokens, in any currency, the same for all models."""

    input: Price
    """Of input tokens that were not cached."""

    output: Price
    """Of output tokens, reasoning included."""

    cached_input: Price | None = Field(default=None)
    """Of input tokens that were read from a cache. Default: as `input`."""

    cache_write: Price | None = Field(default=None)
    """Of input tokens that were written to a cache. Default: as `input`."""
