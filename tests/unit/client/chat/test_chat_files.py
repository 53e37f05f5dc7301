"""Conversations in files: private, whole, one writer at a time."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pallas_gateway.client.chat.chat_files import ChatBusyError, ChatFiles, StoreError
from pallas_gateway.client.chat.chat_turns import Chat, ChatExchange

_IMAGE = {"data": "eA==", "mime_type": "image/png"}
CHAT = Chat("http://localhost", "echo", "chat-1", "cats", (ChatExchange(1, "complete", "hällo", (_IMAGE,), "hi"),))
PLACE = (CHAT.gateway, CHAT.agent)
KILLED = """
import os, signal, sys
from dataclasses import replace
from pathlib import Path
from pallas_gateway.client.chat.chat_files import ChatFiles
files = ChatFiles(Path(sys.argv[1]))
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
files.write(replace(files.read("chat-1"), name="never written"))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one conversation."""
    ChatFiles(tmp_path / "state" / "chats").write(CHAT)
    return tmp_path / "state" / "chats"


def test_a_conversation_is_read_as_it_was_written_and_nobody_else_can_read_it(folder: Path) -> None:
    files = ChatFiles(folder)
    assert files.read("chat-1") == CHAT
    with files.locked("chat-1"):
        files.write(replace(CHAT, name="\ud800"))
    assert [(one.label, one.first) for one in files.threads(PLACE)] == [("?", "hällo")]
    modes = {path.name: path.stat().st_mode & 0o777 for path in (folder.parent, folder, *folder.iterdir())}
    assert modes == {"state": 0o700, "chats": 0o700, "chat-1.json": 0o600, "chat-1.lock": 0o600}


@pytest.mark.parametrize("inside", ["chat-1", "../../out", "{}/out"])
def test_the_name_of_a_file_is_the_id_of_its_conversation_whatever_id_is_inside(
    folder: Path, tmp_path: Path, inside: str
) -> None:
    content = (folder / "chat-1.json").read_text().replace('"chat-1"', f'"{inside.format(tmp_path)}"')
    (folder / "chat-1.json").rename(folder / "peers.json")
    (folder / "peers.json").write_text(content)
    files = ChatFiles(folder)
    [thread] = files.threads(PLACE)
    chat = files.read(thread.id)
    assert chat == replace(CHAT, thread="peers")
    with files.locked(thread.id):
        files.write(replace(chat, turns=chat.turns * 2))
    assert files.read(thread.id) == replace(chat, turns=chat.turns * 2)
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["peers.json", "peers.lock"]


def test_killed_in_the_middle_of_a_write_it_has_what_was_there_before(folder: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, folder], check=False)
    assert killed.returncode == -signal.SIGKILL
    files = ChatFiles(folder)
    assert [one.name for one in files.threads(PLACE)] == ["cats"]
    assert files.read("chat-1") == CHAT
    files.write(replace(CHAT, name="dogs"))
    assert [path.name for path in folder.iterdir()] == ["chat-1.json"]


def test_two_processes_do_not_write_one_conversation(folder: Path) -> None:
    script = "import sys; from pathlib import Path; from pallas_gateway.client.chat.chat_files import ChatFiles\n"
    script += "with ChatFiles(Path(sys.argv[1])).locked('chat-1'): print(flush=True); sys.stdin.read()"
    files, pipe = ChatFiles(folder), subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script, folder], stdin=pipe, stdout=pipe) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(ChatBusyError, match="Not done: another chat waits for an answer in this thread"):
            files.locked("chat-1").__enter__()
        with files.locked("chat-2"):
            files.add(replace(CHAT, name="of 0.1.0"))
        other.kill()
    with files.locked("chat-1"):
        assert files.read("chat-1") == CHAT


DAMAGED = "is damaged, or was written by a newer pallas-gateway"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        *((one, DAMAGED) for one in (b'{"gateway": "http', b"[]", b'{"format": 2}', b"", b"\xff")),
        (os.mkfifo, "cannot be read: it is not a regular file"),
        (Path.mkdir, "cannot be read: it is not a regular file"),
        (lambda path: path.symlink_to(path), "cannot be read: Too many levels of symbolic links"),
    ],
)
def test_what_is_damaged_or_cannot_be_read_is_named_once_and_the_others_can_be_used(
    folder: Path, capsys: pytest.CaptureFixture[str], make: bytes | Callable[[Path], object], why: str
) -> None:
    path = folder / "chat-2.json"
    if isinstance(make, bytes):
        path.write_bytes(make)
    else:
        make(path)
    files = ChatFiles(folder)
    for _ in range(2):
        assert [one.name for one in files.threads(PLACE)] == ["cats"]
    assert capsys.readouterr().err == f"{path} {why}. It is left as it is; other threads can be used.\n"
    with pytest.raises(StoreError, match=why[:10]):
        files.read("chat-2")


def test_a_folder_that_cannot_be_used_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match=r"kept in .*/chat-1.json/chats: .+\. `--db :memory:` keeps none"):
        ChatFiles(folder / "chat-1.json" / "chats")
    files = ChatFiles(folder)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    uses: dict[str, Callable[[], object]] = {
        "iterdir": lambda: files.threads(PLACE),
        "read_bytes": lambda: files.read("chat-1"),
        "replace": lambda: files.write(CHAT),
    }
    for name, use in uses.items():
        with monkeypatch.context() as patch:
            patch.setattr(Path, name, refuse)
            with pytest.raises(StoreError, match="Permission denied"):
                use()
    assert files.read("chat-1") == CHAT
