"""How much of a conversation a model can still read. Pure.

Nobody but the provider can count a model's tokens, so they are estimated: a token for every four bytes of UTF-8 text
(English has about four characters a token, Chinese one character of three bytes), and a fixed number for an image,
which providers charge between 85 and 1,600 for. A part of the window is left for what is not seen from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pallas_gateway.cli.chat.turns import Turn

BYTES_PER_TOKEN = 4
TOKENS_PER_IMAGE = 1600
TOKENS_PER_MESSAGE = 4
"""Its role and what parts it from the next."""
UNSEEN_SHARE = 10
"""One tenth of the window is for the agent's instruction and the descriptions of its tools."""
LONGEST_ANSWER_SHARE = 2
"""At most half of the window is kept for the answer, whatever a model may write."""
_PUBLISHER = "io.modelcontextprotocol.registry/publisher-provided"


@dataclass(frozen=True, slots=True)
class Window:
    """What the registry says of an agent's model, in tokens."""

    context_window: int
    max_output_tokens: int

    @property
    def for_conversation(self) -> int:
        """Tokens for history and message together."""
        answer = min(self.max_output_tokens, self.context_window // LONGEST_ANSWER_SHARE)
        return self.context_window - answer - self.context_window // UNSEEN_SHARE


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The turns that are sent, and how many older ones are not."""

    kept: tuple[Turn, ...]
    dropped: int


def window_of(entry: Mapping[str, Any]) -> Window | None:
    """The window in a registry entry; None where the gateway declares none."""
    published = (entry.get("_meta") or {}).get(_PUBLISHER) or {}
    capabilities = entry.get("capabilities") or published.get("capabilities") or {}
    size, answer = capabilities.get("context_window"), capabilities.get("max_output_tokens")
    if not isinstance(size, int) or size <= 0:
        return None
    return Window(size, answer if isinstance(answer, int) and answer > 0 else 0)


def trimmed(turns: Sequence[Turn], window: Window | None, *, message: str, images: int) -> Trimmed:
    """The newest complete turns that fit beside the new message; whole turns, the oldest left out first."""
    complete = tuple(turn for turn in turns if turn.state == "complete")
    if window is None:
        return Trimmed(complete, 0)
    left = window.for_conversation - _tokens(message, images)
    kept = 0
    for turn in reversed(complete):
        left -= _tokens(turn.message, len(turn.images)) + _tokens(turn.answer or "", 0)
        if left < 0:
            break
        kept += 1
    return Trimmed(complete[len(complete) - kept :], len(complete) - kept)


def _tokens(text: str, images: int) -> int:
    length = len(text.encode("utf-8", "surrogatepass"))
    return -(-length // BYTES_PER_TOKEN) + images * TOKENS_PER_IMAGE + TOKENS_PER_MESSAGE
