"""Problems of configuration files: a message and a place. The rules that find them are elsewhere."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import override

from pallas_gateway.errors import GatewayError


@dataclass(frozen=True)
class Problem:
    """One mistake and its place.

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

    @override
    def __str__(self) -> str:
        """`file:line: path.to.key: what is wrong`, without the parts that are unknown."""
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (place, self.path, self.message) if part)


class ConfigurationError(GatewayError):
    """The configuration cannot be used; holds all problems in the order of the file."""

    reason = "bad_configuration"
    exit_code = 2

    def __init__(self, problems: Iterable[Problem]) -> None:
        """Keep the problems in the given order; the message is one line for each."""
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def nearest(word: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """Return the known word nearest to `word`, if one is similar enough; `likeness` is at most 1."""
    words = list(known)
    swapped = (one for one in words if sorted(one) == sorted(word))
    return next(iter((*swapped, *difflib.get_close_matches(word, words, n=1, cutoff=likeness))), None)


def misspelt(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that `word` almost certainly misspells; for places where unknown words are allowed."""
    return nearest(word, known, likeness=0.8)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the end of a sentence; empty if no known word is similar."""
    return suggesting(nearest(word, known))


def suggesting(found: str | None) -> str:
    """Return ` (did you mean 'x'?)`; empty for None."""
    return f" (did you mean '{found}'?)" if found else ""
