"""A program that speaks MCP over stdio and notes what happens to its processes: for counting them, not seconds.

It imports little, so that a process starts at once. Run as `python -I -S stdio_program.py FOLDER ERA FAULT…`; see
`stdio_processes.Processes`.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

MODERN = "2026-07-28"
EXCESSES = ("news", "daemon", "child", "flood", "line", "values", "deafen", "change")
TOOLS = ("where", "count", "crash", "hang", "ask", "environment", "progress", *EXCESSES)
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}


class Program:
    """One process."""

    def __init__(self, folder: str, era: str, *faults: str) -> None:
        self.folder, self.era, self.faults = Path(folder), era, faults
        self.uses = 0
        self.has_changed = False

    def note(self, **what: Any) -> None:
        self.write("notes", json.dumps({"pid": os.getpid(), **what}) + "\n")

    def write(self, name: str, line: str) -> None:
        descriptor = os.open(self.folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, line.encode())
        os.close(descriptor)

    def has(self, fault: str) -> bool:
        """A fault is an argument of the program, or a file of that name in its folder."""
        return fault in self.faults or (self.folder / fault).exists()

    def send(self, message: dict[str, Any]) -> None:
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

    def main(self) -> None:
        self.note(event="started")
        if self.has("crash-at-start"):
            sys.exit(3)
        while self.has("slow"):
            time.sleep(0.01)
        while line := sys.stdin.readline():
            if self.has("garbage"):
                print("Welcome!\n{\n[1]\n" + json.dumps({"jsonrpc": "2.0", "method": "x"}))
            message = json.loads(line)
            self.write("messages", line)
            if message.get("params", {}) is None:
                continue  # as servers on release 1 of the TypeScript SDK do
            if "method" in message and "id" in message:
                self.answer(message)
        self.note(event="input closed")
        while self.has("deaf"):
            time.sleep(600)

    def answer(self, request: dict[str, Any]) -> None:
        method, params = request["method"], request.get("params") or {}
        self.note(event=method, params=params, id=request["id"])
        if self.has("hang-at-start"):
            return
        if (method == "initialize") != (self.era == "initialize") and method in ("initialize", "server/discover"):
            self.send({"id": request["id"], "error": {"code": -32601, "message": "Method not found"}})
        elif (answer := self.result(method, params, request["id"])) is not None:
            self.send({"id": request["id"], "result": answer})
        while method == "tools/list" and self.has("chatty"):
            self.send({"method": "notifications/message", "params": {"level": "info", "data": "x" * 1000}})

    def result(self, method: str, params: dict[str, Any], number: int) -> dict[str, Any] | None:
        capabilities = {"tools": {"listChanged": True}}
        info = {"name": "program", "version": "1"}
        cached = {"ttlMs": 0, "cacheScope": "private", "resultType": "complete"} if self.era == "modern" else {}
        if method == "initialize":
            return {"protocolVersion": params["protocolVersion"], "capabilities": capabilities, "serverInfo": info}
        if method == "server/discover":
            return {"supportedVersions": [MODERN], "capabilities": capabilities, **cached}
        if method == "tools/list":
            if self.has_changed or self.has("unlisted"):
                return None
            return {"tools": [{"name": name, "inputSchema": SCHEMA} for name in TOOLS], **cached}
        if method == "tools/call":
            text = self.use(params, number)
            return (
                None
                if text is None
                else {"content": [{"type": "text", "text": str(text)}], **(cached and {"resultType": "complete"})}
            )
        return {}

    def use(self, params: dict[str, Any], number: int) -> object:
        self.uses += 1
        name = params["name"]
        if name == "crash":
            os._exit(3)
        if name == "hang":
            return None
        if name == "ask":
            form = {"message": "Who are you?", "requestedSchema": SCHEMA}
            self.send({"id": "question", "method": "elicitation/create", "params": form})
            return json.dumps(json.loads(sys.stdin.readline()))
        if name == "environment":
            return json.dumps(dict(os.environ))
        if name == "progress":
            token = params["_meta"]["progressToken"]
            self.send({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}})
            return "done" if token == number else f"token {token} of request {number}"
        if name in EXCESSES:
            return self.exceed(name, params, number)
        return {"where": os.getpid(), "count": self.uses}[name]

    def report(self, params: dict[str, Any], times: int) -> str:
        token = params["_meta"]["progressToken"]
        for number in range(times):
            self.send({"method": "notifications/progress", "params": {"progressToken": token, "progress": number}})
        return f"reported {times} times"

    def exceed(self, name: str, params: dict[str, Any], number: int) -> object:
        if name == "news":
            return self.report(params, 200)
        if name == "daemon":
            return self.leave_a_daemon()
        if name == "child":
            return self.start_a_child()
        if name == "values":
            many = {"values": [0] * 200_001}
            self.send({"id": number, "result": {"content": [], "structuredContent": many, "resultType": "complete"}})
            return None
        if name == "deafen":
            self.send({"id": number, "result": {"content": [], "resultType": "complete"}})
            time.sleep(600)
        while name in ("flood", "line"):
            os.write(1, b"x" * 2**16 if name == "line" else b"x" * 1000 + b"\n")
        self.has_changed = True  # and answer no request for the changed list
        for _ in range(1000):
            self.send({"method": "notifications/tools/list_changed"})
        return "changed"

    def start_a_child(self) -> int:
        """Start a process that keeps the output open and ignores the end of the input; return its id."""
        if (pid := os.fork()) == 0:
            time.sleep(600)
            os._exit(0)
        self.note(event="started", pid=pid)  # by the parent: the child may run later than its id is used
        return pid

    def leave_a_daemon(self) -> int:
        """Start a process that keeps the output open and ends with the folder's file "daemons"; return its id."""
        flag = self.folder / "daemons"
        flag.touch()
        if (pid := os.fork()) == 0:
            os.setsid()
            while flag.exists():
                time.sleep(0.05)
            os._exit(0)
        return pid


if __name__ == "__main__":
    Program(*sys.argv[1:]).main()
