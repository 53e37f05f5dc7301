"""What is wrong in a configuration file, as sentences with a place; not the rules that find it."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from pallas_gateway.errors import GatewayError


@dataclass(frozen=True)
class Problem:
    """One mistake and where it stands.

    Attributes:
        file: The file as the operator named it, or the command line option that brought the value.
        line: 1-based line in `file`, if known.
        path: Dotted path of the key, such as `agents.research.module`; empty for the file as a whole.
        message: What is wrong and what to do about it; never a secret.
    """

    file: str
    line: int | None
    path: str
    message: str

    def __str__(self) -> str:
        """`file:line: path.to.key: what is wrong`, without the parts that are unknown."""
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (place, self.path, self.message) if part)


class ConfigurationError(GatewayError):
    """The configuration cannot be used; holds every problem that was found, in reading order."""

    reason = "bad_configuration"

    def __init__(self, problems: Iterable[Problem]) -> None:
        """Keep the problems in the given order; the message is one line for each."""
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def nearest(word: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """The known word that `word` was most likely meant to be, if one is near enough; `likeness` is at most 1."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=likeness)), None)


def misspelt(word: str, known: Iterable[str]) -> str | None:
    """The known word of which `word` is almost certainly a misspelling: for places where unknown words are allowed."""
    words = list(known)
    swapped = (one for one in words if sorted(one) == sorted(word))
    return next(swapped, None) or nearest(word, words, likeness=0.8)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence, ` (did you mean 'x'?)`, or nothing when no known word is near."""
    return suggesting(nearest(word, known))


def suggesting(found: str | None) -> str:
    """` (did you mean 'x'?)` for a known word, nothing for None."""
    return f" (did you mean '{found}'?)" if found else ""
