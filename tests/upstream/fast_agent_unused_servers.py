"""fast-agent connects each new session to every MCP server of its agent, also to those that the session never uses."""

import asyncio
import json
import os
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import override

from fast_agent import FastAgent

SESSIONS = 3
asked: list[str] = []
RESULTS: dict[str, dict[str, object]] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "tools", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "unused", "inputSchema": {"type": "object"}}]},
}


class Tools(BaseHTTPRequestHandler):
    """An MCP server with one tool."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked.append(request["method"])
        result = RESULTS.get(request["method"])
        answer = {"jsonrpc": "2.0", "id": request.get("id")}
        answer |= {"result": result} if result else {"error": {"code": -32601, "message": "Method not found"}}
        body = json.dumps(answer).encode() if "id" in request else b""
        self.send_response(200 if body else 202)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.send_error(405)

    @override
    def log_message(self, *_: object) -> None:
        """Nothing."""


async def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Tools)
    Thread(target=server.serve_forever, daemon=True).start()
    tools = {"transport": "http", "url": f"http://127.0.0.1:{server.server_port}/mcp"}
    Path("fastagent.config.yaml").write_text(json.dumps({"mcp": {"servers": {"tools": tools}}}))
    fast = FastAgent("sessions", parse_cli_args=False, quiet=True)
    fast.agent(name="sessions", model="passthrough", servers=["tools"])(main)
    async with fast.harness() as harness:
        asked.clear()
        for number in range(SESSIONS):
            session = await harness.sessions.create(str(number))
            await session.agent_app.sessions.generate("Hello")
            await session.delete()
    server.shutdown()
    fault = len(asked) >= SESSIONS
    print("fault" if fault else "no fault", f": {SESSIONS} sessions, {len(asked)} requests to an unused server", sep="")


os.chdir(tempfile.mkdtemp())
asyncio.run(main())
