"""fast-agent returns the beginning of an answer as the whole, if the body of a streamed completion ends too early."""

import asyncio
import json
import os
import tempfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import override

from fast_agent import FastAgent


class Model(BaseHTTPRequestHandler):
    """Streams one piece of text, then ends the body without `finish_reason` and without `[DONE]`."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        delta = {"role": "assistant", "content": "The password is not"}
        chunk: dict[str, object] = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        chunk["choices"] = [{"index": 0, "delta": delta, "finish_reason": None}]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

    @override
    def log_message(self, *_: object) -> None:
        """Nothing."""


async def main() -> None:
    server = HTTPServer(("127.0.0.1", 0), Model)
    Thread(target=server.serve_forever, daemon=True).start()
    os.environ |= {"GENERIC_BASE_URL": f"http://127.0.0.1:{server.server_port}/v1", "GENERIC_API_KEY": "k"}
    fast = FastAgent("half", parse_cli_args=False, quiet=True)
    fast.agent(name="half", model="generic.m")(main)
    async with fast.harness() as harness:
        session = await harness.sessions.create("one")
        answer = await session.agent_app.half.generate("Which password?")
    server.shutdown()
    fault = answer.stop_reason == "endTurn"
    print("fault" if fault else "no fault", f": {answer.stop_reason}, {answer.last_text()!r}", sep="")


os.chdir(tempfile.mkdtemp())
asyncio.run(main())
