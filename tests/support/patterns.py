"""Texts that a regular expression may take long for, made from its own parts, and how its cost grows with them.

A pattern costs more than its text is long where a repetition is tried from many starts, or given back in many ways. So
each repetition is reached by what stands before it, repeated by itself and together with that, and made to fail.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from time import thread_time
from typing import Any

_parser: Any = import_module("re._parser")  # the standard library has no public one
_REPEATS = {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}
_KINDS = ("xaftn", "07", "-", " \t", "_", ".:=/;", "!\"'\\<\u00e9")
"""Characters by what they may mean to a pattern; of each kind, the first one that a class takes stands for it."""
_SEPARATORS = ("", "-", " ", "!")
MEASURABLE_SECONDS = 0.002
LARGEST = 1_000_000


@dataclass(frozen=True)
class Hostile:
    """A text of any length: `head`, then `part` again and again, then `tail`."""

    head: str
    part: str
    tail: str

    def of(self, length: int) -> str:
        return self.head + self.part * (length // len(self.part)) + self.tail


def hostile_texts(pattern: str, flags: int = 0) -> list[Hostile]:
    """The texts for one pattern, by each repetition in it."""
    found: dict[Hostile, None] = {}
    for before, body in _repetitions(_parser.parse(pattern, flags), [""]):
        if body:
            found |= dict.fromkeys(Hostile(before, body, tail) for tail in ("", "!", "\n"))
        if before + body:
            found |= dict.fromkeys(Hostile("", before + body + separator, "!") for separator in _SEPARATORS)
    return list(found)


def growth(run: Callable[[str], object], text: Hostile, most: int = LARGEST) -> float:
    """The largest cost of twice a text over that of the text: 2 if the cost is in proportion, 4 if it is a square.

    Texts are doubled until they have `most` characters, or the growth is one to complain of. What costs next to nothing
    counts as 0; so does noise, which another try does not show.
    """
    length, largest = 500, 0.0
    cost = _seconds(run, text.of(length))
    while length < most and largest < 3:
        length *= 2
        before, cost = cost, _seconds(run, text.of(length))
        if cost < MEASURABLE_SECONDS or before == 0:
            continue
        ratio = cost / before
        if ratio >= 3:
            ratio = min(ratio, *(_ratio(run, text, length) for _ in range(2)))
        largest = max(largest, ratio)
    return largest


def _ratio(run: Callable[[str], object], text: Hostile, length: int) -> float:
    half, whole = text.of(length // 2), text.of(length)
    whole_seconds, half_seconds = (min(_seconds(run, one) for _ in range(2)) for one in (whole, half))
    return whole_seconds / max(1e-9, half_seconds)


def _seconds(run: Callable[[str], object], text: str) -> float:
    began = thread_time()
    run(text)
    return thread_time() - began


def _repetitions(items: Any, before: list[str]) -> Iterator[tuple[str, str]]:
    """Each repetition's ways to it and bodies."""
    for operation, value in items:
        name = str(operation)
        if name in _REPEATS:
            least, _, body = value
            for prefix in before:
                yield from ((prefix, example) for example in _examples(body))
            yield from _repetitions(body, before)
            whole = [example * max(1, least) for example in _examples(body)[:2]]
            before = _joined(before, [*whole, *([""] if least == 0 else [])])
            continue
        for inner in _inner(name, value):
            yield from _repetitions(inner, before)
        before = _joined(before, _examples([(operation, value)]))


def _inner(name: str, value: Any) -> list[Any]:
    if name == "BRANCH":
        return list(value[1])
    if name == "SUBPATTERN":
        return [value[3]]
    if name == "ATOMIC_GROUP":
        return [value]
    return [value[1]] if name in {"ASSERT", "ASSERT_NOT"} else []


def _joined(before: list[str], after: list[str]) -> list[str]:
    """Ways to go on, a bounded number of them."""
    return list(dict.fromkeys(one + other for other in after for one in before))[:6] or before


def _examples(items: Any) -> list[str]:
    """Some texts that the items match."""
    texts = [""]
    for operation, value in items:
        texts = _joined(texts, _examples_of(str(operation), value))
    return texts


def _examples_of(name: str, value: Any) -> list[str]:
    if name == "LITERAL":
        return [chr(value)]
    if name == "BRANCH":
        return [example for alternative in value[1] for example in _examples(alternative)[:2]]
    if name in {"SUBPATTERN", "ATOMIC_GROUP"}:
        return _examples(value[3] if name == "SUBPATTERN" else value)
    if name in _REPEATS:
        return [example * max(1, value[0]) for example in _examples(value[2])]
    if name in {"IN", "ANY", "NOT_LITERAL"}:
        taken = (next((one for one in kind if _takes(name, value, one)), "") for kind in _KINDS)
        return [one for one in taken if one]
    return [""]  # a place, or a look at what stands around it


def _takes(name: str, value: Any, character: str) -> bool:
    if name == "ANY":
        return True
    if name == "NOT_LITERAL":
        return ord(character) != int(value)
    negated = str(value[0][0]) == "NEGATE"
    return any(_is_in(str(kind), what, character) for kind, what in value) is not negated


def _is_in(kind: str, what: Any, character: str) -> bool:
    if kind == "LITERAL":
        return ord(character) == int(what)
    if kind == "RANGE":
        return bool(what[0] <= ord(character) <= what[1])
    if kind != "CATEGORY":
        return False
    letter = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}[str(what).rpartition("_")[2]]
    is_not = "_NOT_" in str(what)
    return (re.match(letter, character) is None) is is_not
