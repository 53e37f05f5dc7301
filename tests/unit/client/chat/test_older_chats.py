"""The database in which 0.1.0 kept conversations: all of it is read, and it stays as it is."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pallas_gateway.client.chat.chat_files import ChatFiles, StoreError
from pallas_gateway.client.chat.chat_turns import NO_ANSWER
from pallas_gateway.client.chat.older_chats import import_older, older_path

WRITTEN = Path(__file__).with_name("chat_of_0.1.0.sql").read_text()
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
