"""A program in place of a worker: it takes its `Start`, speaks to its parent, and behaves as a file tells it to.

Run by its path with one argument, a folder. There `plan.json` holds, for each worker's number, what its first, second
and further processes do (the last again and again); what a worker hears is written to `heard-<number>`.
"""

import contextlib
import json
import logging
import marshal
import os
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pallas_gateway.process.workers.channel import frame_of_call
from pallas_gateway.process.workers.start import Start, read
from pallas_gateway.telemetry.log_relay import FILE, STDERR, LogPipe

FAILURE = "the certificate does not fit"
CANCELLED = ("tell_others", "cancel", ("root", "hash-of-a-session", "hash-of-a-token", "hash-of-an-id"))
ALIVE = ("alive", "2 of 2 agents ready")


class FakeWorker:
    def __init__(self, folder: Path, start: Start) -> None:
        self.folder = folder
        self.start = start
        self.channel = socket.socket(fileno=start.channel)
        self.log = LogPipe(start.log, start.worker)
        self.may_close = threading.Event()
        self.stops = False
        if "NOTIFY_SOCKET" in os.environ:
            self.note("NOTIFY_SOCKET")

    def run(self) -> int:
        return int(getattr(self, self._behaviour())() or 0)

    def serves(self) -> int:
        """Be ready, stop on SIGTERM, close when told to."""
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGHUP, lambda *_: self.hear_hangup())
        threading.Thread(target=self.listen, daemon=True).start()
        # In one: who hears the first may kill the parent, and there would be nobody to tell the second to.
        self.tell(("ready", f"announced by {self.start.worker}\n"), ALIVE)
        while not self.stops:
            time.sleep(0.02)
        sys.stderr.write(f"{self.start.worker} stopped\n")
        self.tell(("stopped",))
        while not self.may_close.wait(0.02):
            pass
        self.tell(("closed",))
        return 0

    def fails(self) -> int:
        self.tell(("failed", FAILURE))
        return 1

    def crashes(self) -> int:
        """End before it was ready."""
        return 3

    def dies(self) -> int:
        """End after it was ready."""
        self.tell(("ready", "short-lived"))
        return 3

    def is_killed(self) -> None:
        """End by a signal before it was ready."""
        os.kill(os.getpid(), signal.SIGKILL)

    def cancels(self) -> int:
        """Hear of a client that cancels, then serve."""
        self.tell(CANCELLED)
        return self.serves()

    def floods(self) -> int:
        """Hear of many clients that cancel once the first worker has begun, then serve."""
        while not (self.folder / "starts-1").exists():  # one that is killed before would count as not started
            time.sleep(0.02)
        self.tell(*[CANCELLED] * 10_000)
        return self.serves()

    def babbles(self) -> int:
        """Send a frame that holds nothing, then serve."""
        self.channel.sendall(struct.pack("!Q", 1000) + b"x" * 1000)
        return self.serves()

    def closes(self) -> None:
        """Be ready, close the channel, and go on."""
        self.tell(("ready", f"announced by {self.start.worker}\n"))
        self.channel.close()
        while True:
            signal.pause()

    def logs(self) -> int:
        """Write log lines, the last one long, then serve."""
        for number in range(200):
            self.log.send(FILE, json.dumps({"number": number, "worker": self.start.worker}))
        self.log.send(STDERR, "to stderr")
        self.log.send(FILE, json.dumps({"long": "x" * 300_000, "worker": self.start.worker}))
        return self.serves()

    def hangs(self) -> int:
        """Be ready and then do nothing at all."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.tell(("ready", f"announced by {self.start.worker}\n"))
        while True:
            signal.pause()

    def tell(self, *calls: tuple[Any, ...]) -> None:
        self.channel.sendall(b"".join(frame_of_call("parent", *call) for call in calls))

    def stop(self, *_: object) -> None:
        """Stop soon. The handler of a signal may take no lock: the code that it interrupts may hold it."""
        self.stops = True

    def listen(self) -> None:
        with contextlib.suppress(ConnectionResetError), self.channel.makefile("rb") as frames:
            while length := frames.read(8):
                for _, service, method, _values in marshal.loads(frames.read(*struct.unpack("!Q", length))):  # noqa: S302
                    self.note(f"{service}.{method}")
                    if method == "close":
                        self.may_close.set()
        self.stop()
        self.may_close.set()

    def hear_hangup(self) -> None:
        """Note it, and say so where everybody can see it."""
        self.note("SIGHUP")
        sys.stderr.write(f"{self.start.worker} heard SIGHUP\n")

    def note(self, text: str) -> None:
        with (self.folder / f"heard-{self.start.worker}").open("a") as file:
            file.write(f"{text}\n")

    def _behaviour(self) -> str:
        plan: list[str] = json.loads((self.folder / "plan.json").read_text())[str(self.start.worker)]
        starts = self.folder / f"starts-{self.start.worker}"
        with starts.open("a") as file:
            file.write(f"{self.start.restarts}\n")
        count = len(starts.read_text().splitlines())
        return plan[min(count, len(plan)) - 1]


if __name__ == "__main__":
    logging.raiseExceptions = False
    with contextlib.suppress(BrokenPipeError):
        sys.exit(FakeWorker(Path(sys.argv[1]), read(sys.stdin.buffer)).run())
