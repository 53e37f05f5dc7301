"""A conversation in threads of the gateway: nothing of it is kept on this machine."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, override
from urllib.parse import quote

from pallas_gateway.client.arguments import CommandError
from pallas_gateway.client.chat.chat_turns import ChatExchange, ChatThread
from pallas_gateway.client.chat.conversation import NORMAL_STOP, Conversation, sendable_text
from pallas_gateway.client.gateway_api import ApiRefusedError, BrokenOffError, ask, events
from pallas_gateway.client.output import without_controls
from pallas_gateway.errors import GatewayError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from mcp_types import ElicitRequestParams

PREFIX = "/api/v1"
_PAGE = 100
_CANCEL_SECONDS = 5.0
_LIVE = {"assistantStream": True}
"""The events of a turn are those of the assistant stream, which `Screen` shows."""


class KeptConversation(Conversation):
    """With threads of the gateway."""

    async def check(self) -> None:
        """Raise `GatewayError` if the gateway keeps no threads, or not for this caller."""
        await self._request("GET", f"{self._of_agent}?limit=1")

    @override
    async def turns(self) -> list[ChatExchange]:
        return [turn async for turn in self._turns_of(self.thread)] if self.thread else []

    @override
    async def list_threads(self) -> list[ChatThread]:
        return [_thread(row) async for row in self._pages(self._of_agent, "threads", "cursor", "nextCursor")]

    @override
    async def renamed(self, thread: ChatThread, name: str) -> ChatThread:
        return _thread(await self._request("PATCH", _path(thread), {"title": name}))

    @override
    async def send(self, text: str) -> None:
        """Send a turn, show the answer, and answer the agent's questions; Ctrl-C ends the call at the gateway."""
        body: dict[str, Any] = {"message": sendable_text(text), **_LIVE}
        if self.thread is None and self.name:
            self.thread = _thread(await self._request("POST", self._of_agent, {"title": self.name}))
        more = {"images": self.images, "params": self.parameters, "threadId": self.thread.id if self.thread else None}
        body |= {key: value for key, value in more.items() if value}
        await self._turn(f"{PREFIX}/agents/{quote(self.client.agent, safe='')}/chat", body)
        self.images = []

    @override
    async def catch_up(self, turns: Sequence[ChatExchange]) -> None:
        """Follow a turn whose client went away, such as one that waits for an answer to its question."""
        if self.thread is None or not turns or turns[-1].state != "pending":
            return
        self.screen.note(f"Turn {turns[-1].number} still waits for its answer; Ctrl-C ends it.")
        try:
            await self._turn(f"{_path(self.thread)}/answers", {"answers": {}, **_LIVE})
        except GatewayError as error:
            self.screen.problem(str(error))

    async def _turn(self, path: str, body: Mapping[str, Any]) -> None:
        """Show a turn until it has its answer.

        Raises:
            GatewayError: there is none.
        """
        self.screen.begin()
        if self.client.person is not None:
            self.client.person.pause = self.screen.paused
        try:
            final = await self._answered(path, body)
        except asyncio.CancelledError:
            self.screen.end_line()
            await self._cancel()
            raise
        except GatewayError:
            self.screen.end_line()
            raise
        self.screen.finish(str(final.get("content") or ""))
        self.note_left_out(int(final.get("historyLeftOut") or 0))
        images = [str(one.get("mime_type")) for one in final.get("images") or ()]
        stopped = str(final.get("stopped") or final.get("stopReason") or NORMAL_STOP)
        self.note_end(stopped, final.get("params") or {}, images)

    async def _answered(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the last event of a turn.

        Raises:
            GatewayError: there is no answer.
        """
        answering: list[asyncio.Task[None]] = []
        try:
            async with (
                asyncio.TaskGroup() as group,
                events(self.client.url, path, self.client.bearer, body) as stream,
            ):
                try:
                    return await self._followed(stream, group, answering)
                finally:
                    for task in answering:
                        task.cancel()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    async def _followed(
        self,
        stream: AsyncIterator[Mapping[str, Any]],
        group: asyncio.TaskGroup,
        answering: list[asyncio.Task[None]],
    ) -> dict[str, Any]:
        asking: dict[str, asyncio.Task[None]] = {}
        async for event in stream:
            match event.get("type"):
                case "thread":
                    label = self.thread.name if self.thread else None
                    self.thread = ChatThread(str(event["threadId"]), label)
                case "assistant":
                    self.screen.payload(dict(event["data"]))
                case "question":
                    asking[str(event["id"])] = group.create_task(self._answer(dict(event), asking))
                    answering.append(asking[str(event["id"])])
                case "answer" if str(event["id"]) in asking:
                    asking.pop(str(event["id"])).cancel()  # answered elsewhere, or expired
                case "final":
                    return dict(event)
                case "error":
                    raise CommandError(without_controls(str(event.get("message") or "The agent failed.")))
        raise BrokenOffError

    async def _answer(self, question: Mapping[str, Any], asking: dict[str, asyncio.Task[None]]) -> None:
        """Have a question answered, remove it from `asking`, and send the answer.

        The response, in which the turn goes on, is read to its end: a call must not take its client for gone.
        """
        answer: dict[str, Any] = {"action": "decline"}
        if self.client.person is not None:
            decided = await self.client.person.answer(_elicitation(question), question)
            answer = {"action": decided.action}
            if decided.action == "accept" and question.get("mode") != "url":
                answer["content"] = dict(decided.content or {})
        else:
            self.screen.note("(the agent asked a question, which was declined: nobody can be asked here)")
        asking.pop(str(question["id"]), None)
        if self.thread is None:
            return
        path = f"{_path(self.thread)}/answers"
        body = {"answers": {question["id"]: answer}, **_LIVE}
        try:
            async with events(self.client.url, path, self.client.bearer, body) as stream:
                async for _ in stream:
                    pass
        except BrokenOffError:  # the stream of the turn reports the same
            return
        except ApiRefusedError as error:
            if error.error != "question_not_open":
                raise

    async def _cancel(self) -> None:
        """End the call, which waits for its caller if a question is open."""
        if self.thread is not None:
            with suppress(GatewayError, TimeoutError):  # the turn ends when its lease does
                async with asyncio.timeout(_CANCEL_SECONDS):
                    await self._request("POST", f"{_path(self.thread)}/cancel")

    @property
    def _of_agent(self) -> str:
        return f"{PREFIX}/agents/{quote(self.client.agent, safe='')}/threads"

    async def _turns_of(self, thread: ChatThread) -> AsyncIterator[ChatExchange]:
        said: Mapping[str, Any] = {}
        tools: list[str] = []
        path = f"{_path(thread)}/messages"
        async for row in self._pages(path, "messages", "after", "nextAfter", tools="true"):
            if row["role"] == "user":
                said, tools = row, []
            elif "toolCalls" in row:
                tools += [str(one["toolName"]) for one in row["toolCalls"]]
            elif row["role"] == "assistant" and "turnIndex" in said:
                yield _turn(said, row, tools)

    async def _pages(
        self, path: str, key: str, parameter: str, next_key: str, **query: str
    ) -> AsyncIterator[dict[str, Any]]:
        more = "".join(f"&{name}={value}" for name, value in query.items())
        at = ""
        while True:
            page = await self._request("GET", f"{path}?limit={_PAGE}{more}{at}")
            for row in page[key]:
                yield row
            if page.get(next_key) is None:
                return
            at = f"&{parameter}={quote(str(page[next_key]), safe='')}"

    async def _request(self, method: str, path: str, body: Any = None) -> Any:
        return (await ask(method, self.client.url, path, self.client.bearer, body=body)).document


def _path(thread: ChatThread) -> str:
    return f"{PREFIX}/threads/{quote(thread.id, safe='')}"


def _thread(row: Mapping[str, Any]) -> ChatThread:
    return ChatThread(str(row["id"]), row.get("title"), int(row["turns"]), str(row["updatedAt"]))


def _turn(said: Mapping[str, Any], answer: Mapping[str, Any], tools: Sequence[str]) -> ChatExchange:
    error = answer.get("error")
    status = answer["status"]
    return ChatExchange(
        int(said["turnIndex"]),
        status if status in {"complete", "error"} else "pending",
        str(said["content"]),
        tuple(said.get("images") or ()),
        answer.get("content"),
        str(error.get("message") or error.get("reason")) if isinstance(error, dict) else None,
        tools=tuple(tools),
        began_at=str(said["createdAt"]),
        ended_at=answer.get("createdAt"),
    )


def _elicitation(question: Mapping[str, Any]) -> ElicitRequestParams:
    """Return a question in the form in which MCP asks it."""
    from mcp_types import ElicitRequestFormParams, ElicitRequestURLParams  # noqa: PLC0415  other commands need no MCP

    message = str(question["message"])
    if question.get("mode") == "url":
        return ElicitRequestURLParams(message=message, url=str(question["url"]), elicitation_id=str(question["id"]))
    return ElicitRequestFormParams(message=message, requested_schema=dict(question["schema"]))
