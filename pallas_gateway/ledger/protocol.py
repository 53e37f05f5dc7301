"""The ledger as calls see it: it admits each call, is charged for its LLM turns, and notes its end.

The process that owns the workers has the ledger; each worker asks it with one message per call. Without rules and
without an audit log no call asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pallas_gateway.calls.call import Api, Call
    from pallas_gateway.calls.permit import Permit
    from pallas_gateway.config.model.deployment import GatewaySettings
    from pallas_gateway.telemetry.audit_state import AuditState

type Action = Literal["call", "search", "copy"]


@dataclass(frozen=True, slots=True)
class CallEntry:
    """A call at its admission, or a search in threads or a copy of one, which count as a call.

    All values are plain, because they are sent to another process.

    Attributes:
        caller: `key:NAME`, `token:NAME` or `anonymous`.
        account: the holder of counters; see `Caller.account`.
        address: of the client; None if it is not known.
        parent: the id of the call that makes this one; such a call counts no call.
        grant: that has allowed the call; None without `auth`.
        is_decided: the limits were decided in the database; its begin counts nothing and is not refused by a rule.
        action: of its line in the audit log, which has of others than calls only refused ones.
    """

    call_id: str
    agent: str
    caller: str
    account: str
    address: str | None
    api: Api
    parent: str | None = None
    grant: str | None = None
    is_decided: bool = False
    action: Action = "call"

    @classmethod
    def of(cls, call: Call) -> CallEntry:
        """Return the entry of a call."""
        caller = call.caller
        return cls(
            call.call_id,
            call.agent,
            caller.principal,
            caller.account,
            caller.address,
            call.api,
            call.parent_call_id,
            caller.grants.deciding("run:agents", call.agent),
        )

    @property
    def facts(self) -> dict[str, str | None]:
        """The call in the audit log."""
        return {
            "caller": self.caller,
            "address": self.address,
            "agent": self.agent,
            "api": self.api,
            "call_id": self.call_id,
            "parent": self.parent,
            "grant": self.grant,
        }


class UsedLimit(NamedTuple):
    """What an account has used of one limit of a rule.

    Attributes:
        rule: the name of the rule.
        agent: for a rule per caller and agent; empty for one per caller.
        kind: `calls_per_minute`, `calls_at_once` or `tokens_per_day`.
        used: of the present minute, moment or day.
        reset_seconds: until the oldest call leaves the window, or the day ends; None for calls at once, and for a
            window without calls.
    """

    rule: str
    agent: str
    kind: str
    used: int
    reset_seconds: int | None


REFUSED_BY_LEDGER = frozenset({"limited", "audit_unavailable"})
"""Reasons of calls that `Ledger.begin` refuses."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision for the audit log that is no admission or end of a call, such as an approval or a reload.

    Attributes:
        action: one word, such as `approve`, `end_call`, `reload`.
        outcome: one word, such as `allowed`, `refused`, `accepted`.
        facts: plain values of `audit.chain.FIELDS`: `caller`, `address`, `agent`, `call_id`, `grant`, `rule` and
            `reason` where they are known.
    """

    action: str
    outcome: str
    facts: Mapping[str, Any]


class Ledger(Protocol):
    """Admits calls by the rules, and writes the audit log."""

    def use(self, settings: GatewaySettings) -> None:
        """Use these rules, and this audit log, from the next call on."""

    async def begin(self, entry: CallEntry) -> Permit:
        """Admit a call.

        Raises:
            CallLimitedError: a rule refuses it; that is in the audit log.
            CallRefusedError: `audit_unavailable`, because its line cannot be written and `audit_required` is set.
        """

    def note(self, decision: Decision) -> None:
        """Write a decision to the audit log, if there is one."""

    async def used(self, caller: str, account: str, agents: Sequence[str]) -> Sequence[UsedLimit]:
        """Return what an account has used of the limits for calls of these agents.

        Without rules `per: agent`, whose counters show the use of others, and without counters that it shares.
        """

    def ratios(self) -> Mapping[str, float]:
        """Return the used share of each rule, by its name, for the metrics; the largest over its counters."""

    def audit_state(self) -> AuditState | None:
        """Return the state of the audit log for the metrics; None without one."""
