"""Conversations in files: private, whole, one writer at a time."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from pallas_gateway.client.chat.chat_files import ChatBusyError, ChatFiles, StoreError, import_older, older_path
from pallas_gateway.client.chat.chat_turns import NO_ANSWER, Chat, ChatExchange

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


WRITTEN = Path(__file__).with_name("chat_of_0.1.0.sql").read_text()
"""The database in which 0.1.0 kept conversations."""
HERE = ("http://localhost:24200", "echo")


@pytest.fixture
def older(tmp_path: Path) -> Iterator[Path]:
    """The database, while another process has it open: nothing of it is in its main file yet."""
    path = tmp_path / "it's 100% old.sqlite3"
    with closing(sqlite3.connect(path)) as other:
        other.executescript(WRITTEN)
        yield path


def test_all_threads_are_read_with_their_images_and_files(older: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if not path.name.endswith("-shm")}
    files = ChatFiles(tmp_path / "new" / "chats")
    assert import_older(older, files)
    assert before == {name: (tmp_path / name).read_bytes() for name in before}
    numbered, cats = files.threads(HERE)
    assert (cats.name, cats.turns, cats.failed, numbered.name) == ("cats", 2, 1, "#2")
    assert [one.name for one in files.threads(("https://agents.example.com", "echo"))] == ["cats"]
    chat = files.read("chat-50d50d13-0fbf-43a5-b25d-4da8aaf176d7")
    assert chat is not None
    first, second = chat.turns
    assert first.message == "it's a cät?\nlook"
    assert first.images == (
        {"data": "iVBORw0KGgo=", "mime_type": "image/png"},
        {"data": "JVBERi0xLjcK", "mime_type": "application/pdf", "name": "notes 1.pdf"},
    )
    assert (first.number, first.state, first.answer, first.error) == (1, "complete", "done — yes", None)
    assert (first.params, first.tools) == ({"temperature": 0.5}, ("db/query", "find"))
    assert (first.began_at, first.ended_at) == ("2026-11-28T01:14:18.814277+00:00", "2026-11-28T01:14:18.818248+00:00")
    assert (second.state, second.answer, second.error) == ("error", "Once ", "cancelled")
    waiting = files.read(numbered.id)
    assert waiting is not None
    assert [(turn.state, turn.error) for turn in waiting.turns] == [("complete", None), ("error", NO_ANSWER)]


def test_each_thread_is_taken_once(older: Path, tmp_path: Path) -> None:
    files = ChatFiles(tmp_path / "chats")
    import_older(older, files)
    [numbered, cats] = files.threads(HERE)
    (tmp_path / "chats" / f"{cats.id}.json").write_text("damaged, or written by this version since")
    (tmp_path / "chats" / f"{numbered.id}.json").unlink()
    import_older(older, files)
    assert [one.name for one in files.threads(HERE)] == ["#2"]


def test_an_id_that_leads_out_of_the_folder_is_not_taken(older: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(older)) as other, other:
        other.execute(
            "UPDATE thread SET conversation_id = 'chat-/../../out' WHERE name = 'cats' AND gateway = ?", (HERE[0],)
        )
    files = ChatFiles(tmp_path / "chats")
    import_older(older, files)
    assert [one.name for one in files.threads(HERE)] == ["#2"]
    assert [*tmp_path.glob("*.json")] == []


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, None),
        ("CREATE TABLE account (id INTEGER)", "is not a database of `chat` of 0.1.0; no threads were taken from it"),
        (f"{WRITTEN}; PRAGMA user_version = 2", "is not a database of `chat` of 0.1.0; no threads were taken from it"),
        (WRITTEN.replace("'2026-11-28T01:14:18.814277+00:00'", "x'00'"), "cannot be read from"),
        (b"these are no threads\n" * 99, "cannot be read from .*: file is not a database"),
    ],
)
def test_what_else_is_there_is_named_and_left_alone(tmp_path: Path, content: str | bytes | None, why: str) -> None:
    path, files = tmp_path / "chat.sqlite3", ChatFiles(None)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        with closing(sqlite3.connect(path)) as other:
            other.executescript(content.replace(") STRICT", ")"))
    if why:
        with pytest.raises(StoreError, match=why):
            import_older(path, files)
    else:
        assert not import_older(path, files)
        assert not path.exists()


@pytest.mark.parametrize(
    ("environ", "folder"),
    [({}, ".local/share"), ({"XDG_DATA_HOME": "relative"}, ".local/share"), ({"XDG_DATA_HOME": "/data"}, "/data")],
)
def test_it_is_where_0_1_0_had_it(environ: dict[str, str], folder: str, tmp_path: Path) -> None:
    assert older_path(environ, tmp_path) == tmp_path / folder / "pallas-gateway" / "chat.sqlite3"
