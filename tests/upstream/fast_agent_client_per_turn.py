"""fast-agent makes a client, a TLS context and a connection for each turn of an OpenAI-compatible model."""

import asyncio
import json
import os
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import override

from fast_agent import FastAgent

TURNS = 3
connections: set[tuple[str, int]] = set()


class Model(BaseHTTPRequestHandler):
    """Answers "Done.", and keeps its connections open."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        connections.add(self.client_address)
        self.rfile.read(int(self.headers["Content-Length"]))
        delta = {"role": "assistant", "content": "Done."}
        chunk: dict[str, object] = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        chunk["choices"] = [{"index": 0, "delta": delta, "finish_reason": "stop"}]
        body = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, *_: object) -> None:
        """Nothing."""


async def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    Thread(target=server.serve_forever, daemon=True).start()
    os.environ |= {"GENERIC_BASE_URL": f"http://127.0.0.1:{server.server_port}/v1", "GENERIC_API_KEY": "k"}
    fast = FastAgent("turns", parse_cli_args=False, quiet=True)
    fast.agent(name="turns", model="generic.m")(main)
    async with fast.harness() as harness:
        session = await harness.sessions.create("one")
        for _ in range(TURNS):
            await session.agent_app.turns.generate("Go on.")
    server.shutdown()
    fault = len(connections) > 1
    print("fault" if fault else "no fault", f": {TURNS} turns, {len(connections)} connections", sep="")


os.chdir(tempfile.mkdtemp())
asyncio.run(main())
