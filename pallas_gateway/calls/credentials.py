"""What one call may present to whom.

Deliberately no store and no lookup by server: credentials live exactly as long as the call that carries them, so no
two calls can ever see each other's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pallas_gateway.identity.secret import Secret


@dataclass(frozen=True, slots=True)
class Credentials:
    """What one call may present.

    The caller's `bearer` where a downstream opted in, and `llm_bearer` to LLM providers that pass a caller's token
    through.
    """

    bearer: Secret | None
    llm_bearer: Secret | None = None
