"""Prices of models (`gateway.prices`), and the cost of LLM turns by them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pallas_gateway.calls.call import Usage
    from pallas_gateway.config.model.limits import PriceSettings

_TOKENS_OF_A_PRICE = 1_000_000
_log = logging.getLogger("pallas.calls")


class Prices:
    """The prices of a configuration: by `provider.model`, or by `model` for those of every provider."""

    def __init__(self, by_model: Mapping[str, PriceSettings] | None = None) -> None:
        self._by_model = by_model or {}
        self._reported: set[str] = set()

    def of(self, provider: str | None, model: str) -> PriceSettings | None:
        """Return the price of a model; `provider` is its name in fast-agent's settings."""
        return self._by_model.get(f"{provider}.{model}") or self._by_model.get(model)

    def cost(self, provider: str | None, model: str, usage: Usage) -> float | None:
        """Return the cost of one turn; None for a model without a price."""
        price = self.of(provider, model) if self._by_model else None
        if price is None:
            return None
        read = price.input if price.cached_input is None else price.cached_input
        write = price.input if price.cache_write is None else price.cache_write
        cost = usage.input * price.input + usage.cache_read * read
        cost += usage.cache_write * write + usage.output * price.output
        return cost / _TOKENS_OF_A_PRICE

    def report_unpriced(self, provider: str | None, model: str) -> None:
        """Warn, once for each model, that a budget of cost does not include its turns."""
        name = f"{provider}.{model}" if provider else model
        if name not in self._reported:
            self._reported.add(name)
            # Once for each model, if an agent has `max_cost_per_call`.
            _log.warning("model has no price", extra={"model": name})


NO_PRICES = Prices()
