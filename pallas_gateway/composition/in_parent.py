"""What the parent of several workers runs for features; it does without the imports of `features.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_gateway.features.audit.audit_of_workers import audit_in_parent
from pallas_gateway.features.usage.usage_table import usage_in_parent

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.core.feature import InParent

IN_PARENT: tuple[Callable[[Configuration], AbstractContextManager[InParent]], ...] = (audit_in_parent, usage_in_parent)
