"""Listings by credential: who finds which, for how long, and how many are kept."""

import gc
from dataclasses import dataclass

import pytest

from pallas_gateway.identity.secret import Secret
from pallas_gateway.limits import ListingLimits
from pallas_gateway.runtime.downstreams.listings.listing_cache import NO_CREDENTIAL, ListingCache, ListingKey
from pallas_gateway.runtime.downstreams.listings.server_listing import ServerListing

AGENT, OTHER = object(), object()


@dataclass(frozen=True)
class Fake:
    """A listing that is only its bytes."""

    content: bytes

    def encoded(self) -> bytes:
        return self.content


def listing(text: str = "tools") -> ServerListing:
    fake: ServerListing = Fake(text.encode())  # type: ignore[assignment]
    return fake


def key(cache: ListingCache, token: str | None, *, agent: object = AGENT, server: str = "notes") -> ListingKey:
    return ListingKey(agent, server, cache.credential(Secret(token) if token else None))


def put(cache: ListingCache, token: str | None, text: str = "tools", **where: object) -> ListingKey:
    one = key(cache, token, **where)  # type: ignore[arg-type]
    assert cache.store(cache.begin(one), listing(text), 60)
    return one


def test_each_credential_finds_its_own_listing_at_its_own_agent_and_server() -> None:
    cache = ListingCache()
    ann, nobody = put(cache, "ann", "of ann"), put(cache, None, "of nobody")
    assert [one.encoded() for one in (cache.get(ann), cache.get(nobody)) if one] == [b"of ann", b"of nobody"]
    for other in (key(cache, "bob"), key(cache, "ann", agent=OTHER), key(cache, "ann", server="files")):
        assert cache.get(other) is None


def test_credential_is_a_digest_that_differs_between_processes() -> None:
    ann = Secret("anns-token")
    one, other = ListingCache(), ListingCache()
    assert one.credential(ann) == one.credential(Secret("anns-token")) != other.credential(ann)
    assert one.credential(ann) not in (one.credential(Secret("bobs-token")), one.credential(None), NO_CREDENTIAL)
    assert b"anns-token" not in one.credential(ann)


def test_listing_expires_its_time_after_the_begin_of_the_request() -> None:
    now = 100.0
    cache = ListingCache(ListingLimits(clock=lambda: now))
    request = cache.begin(key(cache, "ann"))
    now = 105.0
    assert cache.store(request, listing(), 20)
    now = 119.9
    assert cache.get(request.key) is not None
    now = 120.0
    assert cache.get(request.key) is None
    assert cache.size == (0, 0)


@pytest.mark.parametrize("event", ["drop", "refuse", "forget"])
def test_answer_to_a_request_that_was_sent_before_an_event_is_void(event: str) -> None:
    cache = ListingCache()
    ann, bob = key(cache, "ann"), key(cache, "bob", agent=OTHER)
    requests = [cache.begin(one) for one in (ann, bob)]
    match event:
        case "drop":
            cache.drop(ann)
        case "refuse":
            cache.refuse("notes", ann.credential)
        case _:
            cache.forget(AGENT)
    assert [cache.store(request, listing(), 60) for request in requests] == [False, True]
    assert cache.get(ann) is None
    assert cache.store(cache.begin(ann), listing(), 60)


def test_refusal_removes_what_all_agents_have_of_the_server_for_this_credential_only() -> None:
    cache = ListingCache()
    refused = [put(cache, "ann"), put(cache, "ann", agent=OTHER)]
    others = [put(cache, "bob"), put(cache, "ann", server="files")]
    cache.refuse("notes", refused[0].credential)
    assert [cache.get(one) for one in refused] == [None, None]
    assert None not in [cache.get(one) for one in others]


def test_agent_that_has_ended_leaves_nothing() -> None:
    cache = ListingCache()
    put(cache, "ann")
    put(cache, None)
    kept = put(cache, "ann", agent=OTHER)
    cache.forget(AGENT)
    assert cache.get(kept) is not None
    cache.forget(OTHER)
    assert cache.size == (0, 0)


def test_ten_thousand_credentials_and_no_more_are_kept_the_latest_used_ones() -> None:
    cache = ListingCache()
    anonymous, first = put(cache, None), put(cache, "caller 0")
    for number in range(1, 20_000):
        put(cache, f"caller {number}", f"tools of {number}")
        assert cache.get(first) is not None
    assert cache.size[0] == ListingLimits().credentials == 10_000
    assert cache.get(anonymous) is not None
    assert cache.get(key(cache, "caller 10001")) is None
    assert cache.get(key(cache, "caller 10002")) is not None


def test_credential_of_a_new_listing_counts_as_used() -> None:
    cache = ListingCache(ListingLimits(kept_bytes=20))
    put(cache, "ann", 8 * "a")
    bob = put(cache, "bob", 8 * "b")
    files = put(cache, "ann", 8 * "c", server="files")
    assert cache.get(files) is not None
    assert cache.get(bob) is None


def test_bytes_are_bounded_and_equal_listings_count_once() -> None:
    cache = ListingCache(ListingLimits(kept_bytes=250))
    for token in ("ann", "bob", "cid"):
        put(cache, token, "x" * 100)
    assert cache.size == (3, 100)
    assert cache.get(key(cache, "ann")) is cache.get(key(cache, "bob"))
    put(cache, "dan", "y" * 100)
    put(cache, "eve", "z" * 100)  # the three that have the oldest one go
    assert cache.size == (2, 200)
    assert cache.get(key(cache, "cid")) is None


def test_listing_that_would_evict_many_others_is_not_kept() -> None:
    cache = ListingCache(ListingLimits(kept_bytes=20))
    bob = put(cache, "bob")
    assert cache.get(put(cache, "ann", 10 * "x")) is not None
    assert cache.get(put(cache, "ann", 11 * "x")) is None  # nor the one before it
    assert cache.get(bob) is not None


def test_listing_that_is_replaced_is_counted_no_more() -> None:
    cache = ListingCache()
    one = put(cache, "ann", "first")
    put(cache, "ann", "second one")
    assert cache.size == (1, len("second one"))
    cache.drop(one)
    assert cache.size == (0, 0)


def test_requests_that_were_given_up_are_not_kept() -> None:
    cache = ListingCache()
    for _ in range(10):
        cache.begin(key(cache, "ann"))
    gc.collect()
    assert len(cache._requests) == 0
