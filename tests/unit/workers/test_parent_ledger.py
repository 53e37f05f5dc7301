"""The ledger over its channel: a worker's side and its parent's, with a ledger of the test at the far end."""

from __future__ import annotations

import asyncio
import marshal
from dataclasses import replace
from typing import TYPE_CHECKING, Any, override

import pytest

from pallas_gateway.calls.permit import NO_PERMIT, CallEnd, Excess, Permit
from pallas_gateway.config.model.deployment import GatewaySettings
from pallas_gateway.errors import AgentUnavailableError, CallLimitedError, CallRefusedError, GatewayError
from pallas_gateway.ledger.protocol import CallEntry, Decision, UsedLimit
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.workers.calls_of_worker import CallsOfWorker
from pallas_gateway.workers.parent_ledger import ANSWER_SECONDS, ParentLedger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ENTRY = CallEntry("00c0ffee", "root", "key:ci-1", "ci-1", "127.0.0.1", "mcp", None, "run:agents:root")
END = CallEnd("ok", "end_turn", 1.25, 42)
LIMITED = CallLimitedError("Too many calls.", rule="rule-1", retry_after_seconds=7, limit=3, unit="tokens")
UNAUDITED = CallRefusedError("No line can be written.", reason="audit_unavailable")
EXCESS = Excess("rule-1", "The day is used up.", 60)
RULES = {"limits": {"rules": [{"calls_at_once": 1}]}}
HOSTILE = "\n\x1b[31m\u202e\ud800\N{GRINNING FACE}\x00\u2028"


class _Permit(Permit):
    def __init__(self, ledger: LedgerOfTest, *, is_charged: bool) -> None:
        self.is_charged = is_charged
        self._ledger = ledger

    @override
    async def charge(self, tokens: int) -> Excess | None:
        self._ledger.charged.append(tokens)
        return EXCESS if tokens > 100 else None

    @override
    def end(self, end: CallEnd) -> None:
        self._ledger.ended.append(end)


class LedgerOfTest:
    """Admits what it is asked once `may_answer` is set, or raises `refuses`."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.refuses: BaseException | None = None
        self.is_charged = True
        self.entries: list[CallEntry] = []
        self.charged: list[int] = []
        self.ended: list[CallEnd] = []
        self.noted: list[Decision] = []

    def use(self, settings: GatewaySettings) -> None:
        """No settings."""

    async def begin(self, entry: CallEntry) -> Permit:
        self.entries.append(entry)
        await self.may_answer.wait()
        if self.refuses is not None:
            raise self.refuses
        return _Permit(self, is_charged=self.is_charged)

    def note(self, decision: Decision) -> None:
        self.noted.append(decision)

    def ratios(self) -> Mapping[str, float]:
        return {}

    async def used(self, caller: str, account: str, agents: Sequence[str]) -> Sequence[UsedLimit]:
        return [UsedLimit(caller, agent, account, 3, None) for agent in agents]

    def audit_state(self) -> None:
        return None


class Channel:
    """Both sides; what they send goes through bytes, as over a channel."""

    def __init__(self, answer_seconds: float = ANSWER_SECONDS, /, **settings: object) -> None:
        self.far = LedgerOfTest()
        self.rows: list[tuple[Any, ...]] = []
        self.digests: list[str] = []
        self.has_answered = asyncio.Event()
        self.calls = CallsOfWorker(self.far, self._answer, TaskOwner())
        self.ledger = ParentLedger(self, answer_seconds)  # type: ignore[arg-type]  # all that it uses of a channel
        self.ledger.use(GatewaySettings.model_validate(settings))

    def tell(self, service: str, method: str, *values: Any) -> None:
        """Take what the worker tells its parent."""
        if (service, method) == ("parent", "ledger_settings"):
            self.digests += values
            return
        assert (service, method) == ("ledger", "take")
        self.rows.append(values)
        self.calls.take(*marshal.loads(marshal.dumps(values)))  # noqa: S302

    def _answer(self, *values: Any) -> None:
        self.has_answered.set()
        self.ledger.take(*marshal.loads(marshal.dumps(values)))  # noqa: S302


async def sent(channel: Channel) -> None:
    """Return when what was added is sent, and its answers are."""
    for _ in range(5):
        await asyncio.sleep(0)
    del channel


@pytest.mark.parametrize("settings", [{}, {"audit_required": True}])
async def test_nothing_is_sent_for_a_call_without_rules_and_audit_log(settings: Mapping[str, object]) -> None:
    channel = Channel(**settings)
    permit = await channel.ledger.begin(ENTRY)
    permit.end(END)
    channel.ledger.note(Decision("approve", "allowed", {}))
    await sent(channel)
    assert permit is NO_PERMIT
    assert not channel.rows


async def test_a_call_is_admitted_charged_and_ended_with_all_its_values() -> None:
    channel = Channel(**RULES)
    entry = replace(ENTRY, agent=HOSTILE, caller=f"token:{HOSTILE}", account=HOSTILE, address=None, parent="0ddba11")
    permit = await channel.ledger.begin(entry)
    assert permit.is_charged
    assert await permit.charge(100) is None
    assert await permit.charge(101) == EXCESS
    permit.end(END)
    channel.ledger.note(Decision("approve", "allowed", {"caller": HOSTILE, "seconds": 3}))
    await sent(channel)
    assert (channel.far.entries, channel.far.charged, channel.far.ended) == ([entry], [100, 101], [END])
    assert channel.far.noted == [Decision("approve", "allowed", {"caller": HOSTILE, "seconds": 3})]
    channel.calls.close()
    assert channel.far.ended == [END]


async def test_a_refusal_of_the_parent_is_that_of_the_worker() -> None:
    channel = Channel(audit_log="-")
    channel.far.refuses = LIMITED
    with pytest.raises(CallLimitedError) as limited:
        await channel.ledger.begin(ENTRY)
    assert (str(limited.value), vars(limited.value)) == (str(LIMITED), vars(LIMITED))
    channel.far.refuses = UNAUDITED
    with pytest.raises(CallRefusedError) as refused:
        await channel.ledger.begin(ENTRY)
    assert (str(refused.value), refused.value.reason) == (str(UNAUDITED), UNAUDITED.reason)


async def test_a_fault_of_the_parent_refuses_the_call_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    channel = Channel(**RULES)
    channel.far.refuses = RuntimeError("by a test")
    with pytest.raises(GatewayError, match="could not decide on this call") as refused:
        await channel.ledger.begin(ENTRY)
    assert refused.value.reason == "internal_error"
    await sent(channel)
    assert caplog.messages == ["background task failed"]


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        (RULES, AgentUnavailableError),
        ({"audit_log": "-", "audit_required": True}, CallRefusedError),
        ({"audit_log": "-"}, None),
    ],
)
async def test_a_parent_that_hangs_holds_no_call_and_the_call_is_ended_there(
    settings: dict[str, Any], refused: type[GatewayError] | None, caplog: pytest.LogCaptureFixture
) -> None:
    channel = Channel(0.01, **settings)
    channel.far.may_answer.clear()
    for _ in range(2):
        if refused is None:
            assert await channel.ledger.begin(ENTRY) is NO_PERMIT
        else:
            with pytest.raises(refused):
                await channel.ledger.begin(ENTRY)
    assert await channel.ledger.used("key:ci", "key:ci", []) == []  # this is answered
    assert caplog.messages == ["parent does not answer"]
    channel.far.may_answer.set()
    await sent(channel)
    assert [end.reason for end in channel.far.ended] == ["cancelled", "cancelled"]


@pytest.mark.parametrize("answer", ["before", "after", "never"])
async def test_a_call_that_is_cancelled_while_it_waits_for_its_admission_releases_it(answer: str) -> None:
    channel = Channel(**RULES)
    channel.far.may_answer.clear()
    waiting = asyncio.create_task(channel.ledger.begin(ENTRY))
    await sent(channel)
    if answer == "before":  # the answer is there, and the call has not read it yet
        channel.far.may_answer.set()
        await channel.has_answered.wait()
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    await sent(channel)
    if answer == "never":
        channel.far.refuses = LIMITED
    channel.far.may_answer.set()
    await sent(channel)
    assert [end.reason for end in channel.far.ended] == ([] if answer == "never" else ["cancelled"])
    channel.calls.close()
    assert len(channel.far.ended) == (answer != "never")


async def test_running_and_waiting_calls_of_a_worker_that_has_ended_are_ended() -> None:
    channel = Channel(**RULES)
    permit = await channel.ledger.begin(ENTRY)
    await permit.charge(7)
    channel.far.may_answer.clear()
    waiting = asyncio.create_task(channel.ledger.begin(ENTRY))
    await sent(channel)
    channel.calls.close()
    [lost] = channel.far.ended
    assert (lost.outcome, lost.reason, lost.tokens) == ("error", "worker_ended", 7)
    channel.far.may_answer.set()
    await sent(channel)
    assert [end.reason for end in channel.far.ended] == ["worker_ended", "worker_ended"]
    waiting.cancel()


NESTED = replace(ENTRY, parent="0ddba11")
COUNTED = {"limits": {"rules": [{"calls_at_once": 1, "enforce": False}]}}


@pytest.mark.parametrize(
    ("settings", "entry", "reason"),
    [
        (RULES, ENTRY, "agent_unavailable"),
        (RULES, NESTED, None),
        (COUNTED, ENTRY, None),
        ({"audit_log": "-"}, ENTRY, None),
        ({"audit_log": "-", "audit_required": True}, NESTED, "audit_unavailable"),
        ({"audit_required": True}, ENTRY, None),
    ],
)
@pytest.mark.parametrize("asked", ["before", "after"])
async def test_without_a_parent_a_call_is_refused_if_it_might_be(
    settings: Mapping[str, object], entry: CallEntry, reason: str | None, asked: str
) -> None:
    channel = Channel(**settings)
    channel.far.may_answer.clear()
    if asked == "before":
        waiting = asyncio.create_task(channel.ledger.begin(entry))
        await sent(channel)
        channel.ledger.end()
    else:
        channel.ledger.end()
        waiting = asyncio.create_task(channel.ledger.begin(entry))
    if reason is None:
        assert await waiting is NO_PERMIT
        return
    with pytest.raises((AgentUnavailableError, CallRefusedError)) as refused:
        await waiting
    assert refused.value.reason == reason


async def test_an_admitted_call_goes_on_without_a_parent() -> None:
    channel = Channel(**RULES)
    permit = await channel.ledger.begin(ENTRY)
    charging = asyncio.create_task(permit.charge(7))
    channel.ledger.end()
    assert await charging is None
    assert await permit.charge(1000) is None
    permit.end(END)


async def test_a_worker_tells_its_parent_of_other_limits_and_of_nothing_else() -> None:
    channel = Channel(**RULES)
    for settings in (RULES, {**RULES, "queue_seconds": 1}, {**RULES, "audit_log": "-"}):
        channel.ledger.use(GatewaySettings.model_validate(settings))
    digests = channel.digests
    assert digests[0] == digests[1] == digests[2] != digests[3]
