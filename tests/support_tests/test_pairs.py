"""Parameters in pairs: no value is left out."""

from tests.support.pairs import pairs


def test_each_value_occurs_and_a_shorter_axis_begins_again() -> None:
    mark = pairs({"letter": "abc", "first, second": [(1, 2), (3, 4)]})
    assert mark.args[0] == "letter, first, second"
    assert [row.values for row in mark.args[1]] == [("a", 1, 2), ("b", 3, 4), ("c", 1, 2)]
    assert {row.id for row in mark.args[1]} == {None}


def test_all_combinations_of_crossed_axes_occur_while_the_others_take_turns() -> None:
    mark = pairs({"one": "ab", "turn": {"first": 1, "second": 2, "third": 3}, "two": "xy"}, crossed=("one", "two"))
    rows = [(row.id, row.values) for row in mark.args[1]]
    assert rows == [
        ("a-first-x", ("a", 1, "x")),
        ("a-second-y", ("a", 2, "y")),
        ("b-third-x", ("b", 3, "x")),
        ("b-first-y", ("b", 1, "y")),
    ]
