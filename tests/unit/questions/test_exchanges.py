"""JSON documents between processes of one gateway, in parts."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from pallas_gateway.questions.exchanges import (
    LONGEST_PART,
    MOST_UNREAD,
    MOST_UNREAD_CHARACTERS,
    Exchange,
    Exchanges,
    Part,
)
from tests.support.waiting import tick


def connected() -> tuple[Exchanges, Exchanges, list[Part], list[Exchange]]:
    """Two processes that reach each other, the parts that travelled, and the exchanges that the second one received."""
    one, two, parts, begun = Exchanges("one"), Exchanges("two"), list[Part](), list[Exchange]()
    by_name = {"one": one, "two": two}

    def carry(part: Part) -> None:
        parts.append(part)
        by_name[part.to].take(part)

    one.send = two.send = carry
    two.on_begun = begun.append
    return one, two, parts, begun


async def heard(exchange: Exchange) -> list[Any]:
    return [document async for document in exchange.documents()]


async def test_documents_of_any_length_arrive_whole_and_in_order_in_both_directions() -> None:
    one, two, parts, begun = connected()
    long = {"text": "\N{GRINNING FACE}\ud800" * LONGEST_PART}
    with one.beginning("two") as exchange:
        await exchange.send(long)
        await exchange.send({})
        (other,) = begun
        await other.send({"back": 1})
        assert await anext(exchange.documents()) == {"back": 1}
    assert await heard(other) == [long, {}]
    assert max(len(part.text) for part in parts) == LONGEST_PART
    assert len(one) == len(two) == 0


async def test_the_end_of_an_exchange_is_noticed_by_the_other_process_which_may_say_no_more() -> None:
    one, two, parts, begun = connected()
    ended = []
    with one.beginning("two") as exchange:
        await exchange.send({})
        begun[0].on_end = lambda: ended.append("here")
    assert ended == ["here"]
    sent = len(parts)
    await begun[0].send({"too": "late"})
    assert len(parts) == sent
    with one.beginning("two") as exchange:
        await exchange.send({})
        begun[1].close()
        assert await heard(exchange) == []
    one.take(Part("one", "two", exchange.id, json.dumps({"too": "late"})))
    two.take(Part("two", "one", exchange.id, ""))
    assert len(one) == len(two) == 0


async def test_a_process_that_is_gone_or_cannot_be_reached_ends_its_exchanges() -> None:
    alone = Exchanges()
    with alone.beginning("gone") as exchange:
        await exchange.send({})
        assert await heard(exchange) == []
    one, _, _, _ = connected()
    with one.beginning("two") as exchange, one.beginning("three") as other:
        one.lose("two")
        assert await heard(exchange) == []
        assert len(one) == 1
        one.lose(other.peer)


async def test_a_process_waits_with_further_documents_until_the_other_one_has_read_those_before() -> None:
    one, _, _, begun = connected()
    with one.beginning("two") as exchange:
        await exchange.send({})
        for _ in range(MOST_UNREAD):
            await begun[0].send({"more": 1})
        waiting = asyncio.create_task(begun[0].send({"last": 1}))
        documents = exchange.documents()
        await anext(documents)
        assert not waiting.done()
        await anext(documents)  # so the first one has been read
        await waiting
        begun[0].close()
        assert len([one async for one in documents]) == MOST_UNREAD - 1


async def test_a_large_document_travels_a_few_parts_at_a_time_and_ends_with_its_exchange() -> None:
    one, two, _, begun = connected()
    with one.beginning("two") as exchange:
        await exchange.send({})
        carried = list[Part]()
        two.send = carried.append
        large = {"text": "x" * (10 * LONGEST_PART)}
        sending = asyncio.create_task(begun[0].send(large))
        while not sending.done():
            await tick()
            assert 0 < len(carried) <= MOST_UNREAD_CHARACTERS // LONGEST_PART
            for part in carried:
                one.take(part)
            carried.clear()
        for part in carried:
            one.take(part)
        assert await anext(exchange.documents()) == large
        sending = asyncio.create_task(begun[0].send(large))
        await tick()
        two.lose("one")
        await asyncio.wait_for(sending, 20)


async def test_a_document_that_was_read_too_late_begins_no_exchange() -> None:
    one, two, _, begun = connected()
    with one.beginning("two") as exchange:
        await exchange.send({})
        await begun[0].send({})
        documents = exchange.documents()
        await anext(documents)
        two.forget(begun[0])
        begun.clear()
        one.pass_on(exchange, "null")
        assert not begun


async def test_an_exchange_that_is_expected_by_none_is_closed_at_once() -> None:
    one, two, _, _ = connected()
    two.on_begun = Exchange.close
    with one.beginning("two") as exchange:
        await exchange.send({})
        assert await heard(exchange) == []
