"""The SQLite database in which `chat` of 0.1.0 kept its conversations. It is read, and left as it is."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from pallas_gateway.client.chat.chat_files import StoreError
from pallas_gateway.client.chat.chat_turns import NO_ANSWER
from pallas_gateway.client.chat.transcript import from_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pallas_gateway.client.chat.chat_files import ChatFiles

_SCHEMA = (0x50_47_43_54, 1)  # application_id `PGCT`, user_version


def older_path(environ: Mapping[str, str], home: Path) -> Path:
    """Where 0.1.0 had it by default: in the data directory of the XDG Base Directory Specification."""
    data = environ.get("XDG_DATA_HOME", "")
    return (Path(data) if data.startswith("/") else home / ".local" / "share") / "pallas-gateway" / "chat.sqlite3"


_THREADS = """SELECT id, conversation_id FROM thread WHERE EXISTS (SELECT 1 FROM turn WHERE thread_id = thread.id)
    AND conversation_id GLOB 'chat-*' AND conversation_id NOT GLOB '*[^0-9a-z-]*'"""
"""Those with turns whose ids 0.1.0 made: an id names a file."""
_THREAD = """SELECT json_object('gateway', gateway, 'agent', agent, 'thread', conversation_id,
    'name', coalesce(name, '#' || id), 'turns', json((
        SELECT json_group_array(json_object('number', number, 'state', iif(state = 'complete', state, 'error'),
            'message', message, 'images', json(images), 'answer', answer, 'error', iif(state = 'pending', :why, error),
            'params', json(params), 'tools', json(tools), 'began_at', began_at, 'ended_at', ended_at))
        FROM (SELECT * FROM turn WHERE thread_id = :id ORDER BY number)
    ))) FROM thread WHERE id = :id"""
"""A thread in the form of `from_json`. One without a name is named by its number, `#3`."""


def import_older(path: Path, files: ChatFiles) -> bool:
    """Copy each thread of the database that has no file yet; return False if there is no database.

    Raises:
        StoreError: the database cannot be read or has another schema, or a file cannot be written.
    """
    try:
        if not path.exists():
            return False
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)) as database:
            schema = "SELECT application_id, user_version FROM pragma_application_id, pragma_user_version"
            if database.execute(schema).fetchone() != _SCHEMA:
                raise StoreError(f"{path} is not a database of `chat` of 0.1.0; no threads were taken from it.")
            for id_, thread in database.execute(_THREADS).fetchall():
                if not files.has(thread):
                    [(document,)] = database.execute(_THREAD, {"id": id_, "why": NO_ANSWER})
                    files.add(from_json(document))
            return True
    except (sqlite3.Error, OSError, ValueError) as error:
        raise StoreError(f"The threads of `chat` of 0.1.0 cannot be read from {path}: {error}.") from error
