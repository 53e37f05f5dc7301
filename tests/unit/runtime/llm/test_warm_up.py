"""Warming up the libraries of LLM providers."""

from functools import cache
from threading import Thread

import pytest

from pallas_gateway.runtime.llm import warm_up


class Llm:
    """A fast-agent class."""


def test_agents_that_start_at_the_same_time_read_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Thread] = []

    @cache
    def reader() -> None:
        read.append(second)
        if not second.is_alive():
            second.start()
            second.join(0.05)  # if it is not held up, it reads within that time

    second = Thread(target=warm_up.warm_up, args=(Llm,))
    monkeypatch.setitem(warm_up._READERS, Llm.__name__, reader)
    warm_up.warm_up(Llm)
    second.join()

    assert len(read) == 1
