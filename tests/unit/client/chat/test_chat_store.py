"""Threads in a file: numbers without gaps, honest ends, two chats at once, older and foreign files."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from pallas_gateway.client.chat import chat_store as store_module
from pallas_gateway.client.chat.chat_schema import APPLICATION_ID, MIGRATIONS, SchemaError, migrate
from pallas_gateway.client.chat.chat_store import (
    GONE,
    ChatBusyError,
    ChatStore,
    StoreError,
    default_path,
    is_running,
    opened,
    this_process,
)
from pallas_gateway.client.chat.chat_turns import ChatPlace
from pallas_gateway.client.usage import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HERE = ChatPlace("http://localhost:24200", "jarvis")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where there is no file yet."""
    return tmp_path / "new" / "chat.sqlite3"


@contextmanager
def opened_by(owner: str, path: Path, alive: Callable[[str], bool] = lambda _: True) -> Iterator[ChatStore]:
    """A store of another process."""
    with opened(path, alive) as store:
        store._me = owner
        yield store


def test_a_turn_is_pending_until_it_is_complete(path: Path) -> None:
    with opened(path) as store:
        thread = store.open_thread(HERE)
        number = store.begin(thread, "hello", [{"data": "x", "mime_type": "image/png"}], {"seed": 1})
        [pending] = store.turns(thread)
        store.complete(thread, number, "hi", ["db/query"])
        [complete] = store.turns(thread)
    assert (pending.state, pending.answer, pending.ended_at) == ("pending", None, None)
    assert (complete.number, complete.state, complete.message, complete.answer) == (1, "complete", "hello", "hi")
    assert (complete.images, complete.params) == (({"data": "x", "mime_type": "image/png"},), {"seed": 1})
    assert complete.tools == ("db/query",)


def test_turns_are_numbered_on_when_the_file_is_opened_again(path: Path) -> None:
    for expected in (1, 2, 3):
        with opened(path) as store:
            thread = store.open_thread(HERE, "work")
            assert store.begin(thread, "again", [], {}) == expected
            store.fail(thread, expected, "cancelled", seen="as far as")
    with opened(path) as store:
        assert [(turn.number, turn.state, turn.error, turn.answer) for turn in store.turns(thread)] == [
            (number, "error", "cancelled", "as far as") for number in (1, 2, 3)
        ]


def test_the_turn_of_a_process_that_is_gone_is_an_error_at_the_next_opening(path: Path) -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    with opened_by(f"{int(gone.stdout)}:1", path) as store:
        thread = store.open_thread(HERE)
        store.begin(thread, "hello", [], {})
    with opened(path) as store:
        [turn] = store.turns(thread)
        assert (turn.state, turn.error) == ("error", GONE)
        assert store.begin(thread, "again", [], {}) == 2


def test_the_turn_of_a_process_that_runs_waits_on(path: Path) -> None:
    with opened_by(this_process(), path) as one, opened_by("2:2", path, is_running) as two:
        thread = one.open_thread(HERE)
        number = one.begin(thread, "hello", [], {})
        with pytest.raises(ChatBusyError, match=r"another chat \(process \d+\) waits for an answer in this thread"):
            two.begin(thread, "me too", [], {})
        one.complete(thread, number, "hi", [])
        assert two.begin(thread, "me too", [], {}) == 2


def test_a_pending_turn_older_than_any_call_is_given_up_whoever_has_its_owners_number(path: Path) -> None:
    with opened_by("1:1", path) as store:
        thread = store.open_thread(HERE)
        store.begin(thread, "hello", [], {})
        old = (datetime.now(UTC) - timedelta(days=2)).isoformat()
        store._connection.execute("UPDATE turn SET began_at = ?", (old,))
        store.give_up_stale()
        assert [turn.state for turn in store.turns(thread)] == ["error"]


def test_who_was_taken_for_gone_hears_that_its_answer_is_not_kept(path: Path) -> None:
    with opened_by("1:1", path) as slow, opened_by("2:2", path, lambda _: False) as other:
        thread = slow.open_thread(HERE)
        number = slow.begin(thread, "hello", [], {})
        other.give_up_stale()
        with pytest.raises(StoreError, match="Turn 1 was given up by another chat meanwhile; its answer is not kept"):
            slow.complete(thread, number, "late", [])
        assert [(turn.state, turn.answer) for turn in other.turns(thread)] == [("error", None)]


def test_what_this_process_could_not_end_does_not_block_its_next_turn(path: Path) -> None:
    with opened(path) as store:
        thread = store.open_thread(HERE)
        store.begin(thread, "the disk was full when its answer came", [], {})
        assert store.begin(thread, "again", [], {}) == 2
        assert [turn.state for turn in store.turns(thread)] == ["error", "pending"]


def test_many_chats_in_one_thread_neither_lose_nor_mix_turns(path: Path) -> None:
    together, taken = threading.Barrier(6), []

    def talk(owner: str) -> None:
        together.wait(20)
        with opened_by(owner, path) as store:
            thread = store.open_thread(HERE, "shared")
            said = 0
            while said < 5:
                try:
                    number = store.begin(thread, f"{owner} {said}", [], {})
                except ChatBusyError:
                    continue
                store.complete(thread, number, f"to {owner} {said}", [])
                taken.append(number)
                said += 1

    chats = [threading.Thread(target=talk, args=(f"{number}:1",)) for number in range(6)]
    for chat in chats:
        chat.start()
    for chat in chats:
        chat.join(60)
    with opened(path) as store:
        turns = store.turns(store.open_thread(HERE, "shared"))
    assert sorted(taken) == [turn.number for turn in turns] == list(range(1, 31))
    assert [turn.answer for turn in turns] == [f"to {turn.message}" for turn in turns]


def test_a_file_that_another_chat_is_just_setting_up_is_waited_for(path: Path) -> None:
    waited = []
    path.parent.mkdir(parents=True, exist_ok=True)
    mine = sqlite3.connect(path, timeout=0, autocommit=True)  # as where two set the mode at once: SQLite does not wait
    with closing(mine), closing(sqlite3.connect(path, autocommit=True)) as other:
        other.execute("CREATE TABLE one (number)")
        other.execute("BEGIN")
        other.execute("SELECT * FROM one").fetchall()

        def give_way(seconds: float) -> None:
            waited.append(seconds)
            other.execute("COMMIT")

        store_module._enable_wal(mine, busy_seconds=10, pause=give_way)

        assert mine.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert waited == [store_module.RETRY_SECONDS]


def test_threads_are_found_by_name_and_number_with_their_agent_only(path: Path) -> None:
    elsewhere = ChatPlace("https://agents.example.com", "jarvis")
    with opened(path) as store:
        work, other = store.open_thread(HERE, "work"), store.open_thread(elsewhere, "work")
        assert work.id != other.id
        assert (store.find(HERE, "work"), store.find(HERE, f"#{work.id}")) == (work, work)
        assert store.find(HERE, f"{work.id}") == work
        assert (store.find(HERE, f"#{other.id}"), store.find(HERE, "play")) == (None, None)
        play = store.open_thread(HERE)
        with pytest.raises(UsageError, match="There is a thread 'work' already"):
            store.name_thread(HERE, play, "work")
        assert store.name_thread(HERE, play, "play").label == "play"
        assert store.name_thread(HERE, work, "work") == work


def test_the_latest_thread_is_the_one_that_was_talked_in_last(path: Path) -> None:
    with opened(path) as store:
        one, two, _empty = (store.open_thread(HERE, name) for name in ("one", "two", "empty"))
        for thread in (one, two, one):
            store.complete(thread, store.begin(thread, f"in {thread.name}", [], {}), "ok", [])
        store.fail(one, store.begin(one, "more", [], {}), "no")
        summaries = store.summaries(HERE)
    assert [(one.thread.label, one.turns, one.failed, one.first) for one in summaries] == [
        ("one", 3, 1, "in one"),
        ("two", 1, 0, "in two"),
    ]


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("INSERT INTO turn (thread_id, number, state, owner, message, images, params, began_at) "
         "VALUES (1, 3, 'pending', '', '', '[]', '{}', '')", "numbered from 1 without gaps"),
        ("INSERT INTO turn (thread_id, number, state, owner, message, images, params, began_at) "
         "VALUES (1, 1, 'pending', '', '', '[]', '{}', '')", "numbered from 1 without gaps"),
        ("INSERT INTO turn (thread_id, number, state, owner, message, images, params, began_at, answer, ended_at) "
         "VALUES (1, 2, 'complete', '', '', '[]', '{}', '', '', '')", "begins as pending"),
        ("UPDATE turn SET number = 7", "stays as it"),
        ("UPDATE turn SET state = 'pending', ended_at = NULL", "stays as it is"),
        ("DELETE FROM thread", "FOREIGN KEY"),
    ],
)  # fmt: skip
def test_the_tables_themselves_refuse_what_must_not_be(path: Path, statement: str, why: str) -> None:
    with opened(path) as store:
        thread = store.open_thread(HERE)
        store.complete(thread, store.begin(thread, "hello", [], {}), "hi", [])
        with pytest.raises(sqlite3.IntegrityError, match=why):
            store._connection.execute(statement)


def test_a_second_pending_turn_in_a_thread_is_refused_by_the_tables(path: Path) -> None:
    with opened(path) as store:
        thread = store.open_thread(HERE)
        store.begin(thread, "hello", [], {})
        with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
            store._connection.execute(
                "INSERT INTO turn (thread_id, number, state, owner, message, images, params, began_at) "
                "VALUES (1, 2, 'pending', '', '', '[]', '{}', '')"
            )


def test_a_file_that_others_could_read_is_closed_to_them(path: Path) -> None:
    path.parent.mkdir()
    path.touch(mode=0o644)
    with opened(path) as store:
        thread = store.open_thread(HERE)
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert thread.id == 1
    assert modes == dict.fromkeys(["chat.sqlite3", "chat.sqlite3-wal", "chat.sqlite3-shm"], 0o600)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"kept in .*/file/chat.sqlite3: .+\. --db names another file"), \
            opened(tmp_path / "file" / "chat.sqlite3"):  # fmt: skip
        pass


def test_a_file_that_another_writes_to_for_long_is_told(path: Path) -> None:
    with opened(path, busy_seconds=0.01) as store, closing(sqlite3.connect(path, autocommit=True)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="database is locked"):
            store.open_thread(HERE)
        other.execute("ROLLBACK")
        assert store.open_thread(HERE).id == 1


# Schema.


def test_a_files_missing_steps_are_done_and_nothing_is_lost(path: Path) -> None:
    with opened(path) as store:
        store.open_thread(HERE, "work")
    later = (*MIGRATIONS, ["ALTER TABLE thread ADD COLUMN colour TEXT NOT NULL DEFAULT 'red'"])
    with closing(sqlite3.connect(path, autocommit=True)) as connection:
        migrate(connection, later)
        migrate(connection, later)
        assert connection.execute("SELECT name, colour FROM thread").fetchall() == [("work", "red")]
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    with pytest.raises(StoreError, match="written by a newer pallas-gateway"), opened(path):
        pass


def test_a_step_that_fails_leaves_the_file_as_it_was(path: Path) -> None:
    with opened(path), closing(sqlite3.connect(path, autocommit=True)) as connection:
        with pytest.raises(sqlite3.OperationalError, match="nonsense"):
            migrate(connection, (*MIGRATIONS, ["ALTER TABLE thread ADD COLUMN colour TEXT", "nonsense"]))
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert "colour" not in [row[1] for row in connection.execute("PRAGMA table_info(thread)")]


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "bank.sqlite3", autocommit=True)) as connection:
        connection.execute("CREATE TABLE account (id INTEGER)")
        with pytest.raises(SchemaError, match="another program's database"):
            migrate(connection)
        assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("account",)]
        assert connection.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,)


# Places and owners.


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ".local/share/pallas-gateway/chat.sqlite3"),
        ({"XDG_DATA_HOME": "relative"}, ".local/share/pallas-gateway/chat.sqlite3"),
        ({"XDG_DATA_HOME": "/data"}, "/data/pallas-gateway/chat.sqlite3"),
    ],
)
def test_the_file_is_where_the_xdg_specification_wants_it(
    environ: dict[str, str], expected: str, tmp_path: Path
) -> None:
    assert default_path(environ, tmp_path) == tmp_path / expected


@pytest.mark.parametrize(
    ("url", "gateway"),
    [
        ("http://127.0.0.1:24200/", "http://localhost:24200"),
        ("http://[::1]:24200", "http://localhost:24200"),
        ("https://agents.example.com/team", "https://agents.example.com/team"),
    ],
)
def test_a_gateway_is_one_under_all_its_names(url: str, gateway: str) -> None:
    assert ChatPlace.of(url, "a_b") == ChatPlace(gateway, "a-b")


def test_this_process_runs_and_one_of_its_number_before_it_does_not() -> None:
    number = this_process().partition(":")[0]
    assert is_running(this_process())
    assert is_running(f"{number}:")
    assert not is_running(f"{number}:1")
    assert not is_running("")


def test_a_change_that_cannot_be_committed_is_rolled_back(path: Path) -> None:
    def change(store: ChatStore) -> None:
        with store._transaction():
            store._connection.execute("PRAGMA defer_foreign_keys = ON")  # so that the commit fails
            store._connection.execute(
                "INSERT INTO turn (thread_id, number, state, owner, message, images, params, began_at) "
                "VALUES (99, 1, 'pending', '', '', '[]', '{}', '')"
            )

    with opened(path) as store:
        with pytest.raises(StoreError, match="FOREIGN KEY"):
            change(store)
        assert store.open_thread(HERE).id == 1
