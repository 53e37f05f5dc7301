"""The features of the product, in their order. No other module knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_gateway.doors.openai.feature import OpenAiDoor
from pallas_gateway.features.audit.feature import AuditFeature
from pallas_gateway.features.console.feature import ConsoleFeature
from pallas_gateway.features.definitions.feature import DefinitionsFeature
from pallas_gateway.features.limits.feature import LimitsFeature
from pallas_gateway.features.pages.feature import PagesFeature
from pallas_gateway.features.registry.feature import RegistryFeature
from pallas_gateway.features.running_calls.feature import RunningCallsFeature
from pallas_gateway.features.sign_in.feature import SignInFeature
from pallas_gateway.features.threads.feature import ThreadsFeature
from pallas_gateway.features.tries.feature import TriesFeature
from pallas_gateway.features.usage.feature import UsageFeature

if TYPE_CHECKING:
    from pallas_gateway.core.feature import Feature

FEATURES: tuple[type[Feature], ...] = (
    LimitsFeature,  # before the audit log: a call that a limit refuses has no line of an allowed call
    AuditFeature,
    UsageFeature,
    RunningCallsFeature,
    TriesFeature,
    DefinitionsFeature,
    ThreadsFeature,
    OpenAiDoor,
    PagesFeature,
    RegistryFeature,
    SignInFeature,
    ConsoleFeature,
)
