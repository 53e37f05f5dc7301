import json

from tests.figures.clocks import KNOWN, uses


def test_tests_use_real_time_no_more_than_before_and_the_list_shrinks() -> None:
    known, found = json.loads(KNOWN.read_text()), uses()
    more = {file: count for file, count in found.items() if count > known.get(file, 0)}
    assert more == {}, "set the limit that the test waits for, or use virtual time (tests/figures/clocks.py)"
    fewer = {file: count for file, count in known.items() if count > found.get(file, 0)}
    assert fewer == {}, "python -m tests.figures.clocks writes the list"
