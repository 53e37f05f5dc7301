"""Folders of killed gateways are removed by the next one, and no others."""

import os
from pathlib import Path

from pallas_gateway.process.workers.start import PREFIX, shared_folder


def folders(place: Path) -> set[Path]:
    return {*place.glob(f"{PREFIX}*")}


def test_a_folder_is_removed_once_no_process_has_its_lock(tmp_path: Path) -> None:
    earlier = tmp_path / f"{PREFIX}of-an-earlier-release"
    earlier.mkdir()
    killed = tmp_path / f"{PREFIX}killed"
    killed.mkdir()
    (killed / "lock").touch()
    (killed / "counter_1.db").write_bytes(b"1")
    with shared_folder(str(tmp_path)) as (first, _):
        assert folders(tmp_path) == {earlier, first}
        with shared_folder(str(tmp_path)) as (second, _):
            assert folders(tmp_path) == {earlier, first, second}
    assert folders(tmp_path) == {earlier}


def test_a_folder_is_in_use_while_a_worker_has_what_it_inherited(tmp_path: Path) -> None:
    with shared_folder(str(tmp_path)) as (folder, lock):
        inherited = os.dup(lock)
        folder.rename(orphaned := tmp_path / f"{PREFIX}orphaned")
        folder.mkdir()  # for the end of the block
    with shared_folder(str(tmp_path)):
        assert orphaned.exists()
    os.close(inherited)
    with shared_folder(str(tmp_path)):
        assert not orphaned.exists()


def test_links_are_not_followed(tmp_path: Path) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (elsewhere / "lock").touch()
    (place := tmp_path / "place").mkdir()
    (place / f"{PREFIX}link").symlink_to(elsewhere)
    with shared_folder(str(place)):
        assert (elsewhere / "lock").exists()
