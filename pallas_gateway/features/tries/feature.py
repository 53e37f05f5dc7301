"""Definitions are tried before they are saved."""

from __future__ import annotations

from typing import Any, override

from pallas_gateway.core.feature import Feature
from pallas_gateway.features.definitions.feature import DefinitionsFeature
from pallas_gateway.features.threads.feature import ThreadsFeature


class TriesFeature(Feature):
    """The routes of tries, which come before those of agents with names."""

    needs = (DefinitionsFeature, ThreadsFeature)
    needs_database = True

    @classmethod
    @override
    def api(cls) -> Any:
        from pallas_gateway.features.tries.api import TriesApi  # noqa: PLC0415  imported only where needed

        return TriesApi
