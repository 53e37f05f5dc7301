"""Verification finds every edit before a kept head, and tells lines that a crash cut from these."""

import gzip
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pallas_gateway.features.audit.chain import BEGIN, LONGEST_LINE, Head, hash_of, next_line
from pallas_gateway.features.audit.verifying import CUT, FOREIGN, MOST_FINDINGS, ChainFinding, Verification, verify

LINES = 12
TIME = "2026-11-24T05:00:00.000Z"


def chain(count: int = LINES, word: str = "call") -> list[bytes]:
    lines, head = [], BEGIN
    for number in range(count):
        line, head = next_line(head, TIME, {"action": word, "call_id": str(number)})
        lines.append(line)
    return lines


CHAIN = chain()
HEADS = [BEGIN, *(Head(number, hash_of(line)) for number, line in enumerate(CHAIN, 1))]


def findings(lines: Sequence[bytes], *kept: Head) -> list[ChainFinding]:
    verification = Verification(kept)
    for number, line in enumerate(lines, 1):
        verification.take(line, f"log:{number}")
    verification.end()
    return verification.findings


def faults(lines: Sequence[bytes], *kept: Head) -> list[str]:
    return [str(one) for one in findings(lines, *kept) if one.is_fault]


def test_a_whole_log_has_no_findings_with_any_kept_head() -> None:
    assert findings(CHAIN, *HEADS) == []
    assert findings([]) == []


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([*CHAIN[:5], CHAIN[5].replace(b"call", b"cull"), *CHAIN[6:]], "log:7: refers to another line 6"),
        ([*CHAIN[:5], *CHAIN[6:]], "log:6: line 6 is missing"),
        ([*CHAIN[:5], *CHAIN[8:]], "log:6: lines 6 to 8 are missing"),
        ([*CHAIN[:5], CHAIN[6], CHAIN[5], *CHAIN[7:]], "log:6: line 6 is missing"),
        ([*CHAIN[:5], CHAIN[4], *CHAIN[5:]], "log:6: line 5 follows line 5: the order was changed"),
        ([*CHAIN[:5], b"another", *CHAIN[5:]], f"log:6: {FOREIGN}"),
        ([*CHAIN[:5], b"", *CHAIN[5:]], f"log:6: {FOREIGN}"),
        ([*CHAIN[:5], CHAIN[5] + b" " * LONGEST_LINE, *CHAIN[6:]], "log:6: is longer than any line"),
        ([*CHAIN, *CHAIN], "log:13: a new chain begins after line 12"),
        (CHAIN[3:], "log:1: lines 1 to 3 are missing: name the files before"),
        (CHAIN[1:], "log:1: line 1 is missing"),
        ([CHAIN[0].replace(b"000", b"111")], "log:1: is numbered 1 and refers to a line before it"),
    ],
)
def test_an_edit_is_found_at_its_line(lines: list[bytes], found: str) -> None:
    first, *_ = faults(lines)
    assert first.startswith(found)


def test_a_log_rewritten_from_the_start_is_found_only_by_a_kept_head() -> None:
    other = chain(word="nothing")
    assert faults(other) == []
    assert faults(other, HEADS[4]) == [
        "log:12: line 4 is not the one of the kept head: it or a line before it was changed or removed"
    ]


def test_missing_lines_at_the_end_are_found_by_a_kept_head() -> None:
    assert faults(CHAIN[:7]) == []
    assert faults(CHAIN[:7], HEADS[9]) == [
        "log:7: the log ends with line 7; the kept head is of line 9: lines are missing"
    ]
    assert faults([], HEADS[9]) == [
        "audit log: the log ends with line 0; the kept head is of line 9: lines are missing"
    ]


def test_a_kept_head_replaces_files_that_were_deleted() -> None:
    assert findings(CHAIN[3:], HEADS[3]) == [
        ChainFinding(
            "log:1", "follows the kept head of line 3; the lines before are not in these files", is_fault=False
        )
    ]
    assert faults(CHAIN[3:], Head(3, HEADS[3].hash[:16]), HEADS[9]) == []
    assert len(faults(CHAIN[3:], HEADS[2])) == 2


def test_a_line_that_a_crash_cut_is_a_note() -> None:
    cut = CHAIN[5][:100]
    for lines in ([*CHAIN[:5], cut, *CHAIN[5:]], [*CHAIN[:5], cut], [*CHAIN[:5], cut, cut[:10], *CHAIN[5:]]):
        found = findings(lines, HEADS[5])
        assert not any(one.is_fault for one in found)
        assert found[0] == ChainFinding("log:6", CUT, is_fault=False)
    assert findings([CHAIN[0][:50], *CHAIN]) == [ChainFinding("log:1", CUT, is_fault=False)]
    assert findings([CHAIN[0][:50]]) == [ChainFinding("log:1", CUT, is_fault=False)]
    assert findings([CHAIN[3][:90], *CHAIN[3:]], HEADS[3])[1:] == [ChainFinding("log:1", CUT, is_fault=False)]


def test_a_cut_line_of_another_place_is_a_fault() -> None:
    assert faults([*CHAIN[:5], CHAIN[7][:100], *CHAIN[5:]]) == [f"log:6: {FOREIGN}"]
    assert faults([CHAIN[7][:100], *CHAIN]) == [f"log:1: {FOREIGN}"]


def test_a_line_damaged_to_look_cut_is_missing() -> None:
    assert "log:7: line 6 is missing" in faults([*CHAIN[:5], CHAIN[5][:100], *CHAIN[6:]])


def test_files_are_verified_in_order_compressed_ones_too(tmp_path: Path) -> None:
    old, new = tmp_path / "audit.log.1.gz", tmp_path / "audit.log"
    old.write_bytes(gzip.compress(b"".join(line + b"\n" for line in CHAIN[:5])))
    new.write_bytes(b"".join(line + b"\n" for line in CHAIN[5:]))

    whole = verify([old, new], HEADS)
    assert (whole.head, whole.findings) == (HEADS[-1], [])
    assert [str(one) for one in verify([new, old]).findings] == [
        f"{new}:1: lines 1 to 5 are missing: name the files before, or a kept head: --expect 5:HASH",
        f"{old}:1: a new chain begins after line 12",
    ]


def test_a_huge_line_takes_no_memory(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    file.write_bytes(CHAIN[0] + b"\n" + b"x" * 10_000_000 + b"\n" + CHAIN[1] + b"\n")

    verified = verify([file])

    assert verified.head == HEADS[2]
    assert [one.place for one in verified.findings] == [f"{file}:2"]


@pytest.mark.parametrize("lines", [[b""], [b"\0"], [*CHAIN, b"\0"]])
def test_a_file_with_a_finding_in_each_line_takes_no_memory(tmp_path: Path, lines: list[bytes]) -> None:
    file = tmp_path / "audit.log"
    file.write_bytes(b"".join(line + b"\n" for line in lines) + b"\n\0\n" * MOST_FINDINGS)

    verified = verify([file])

    assert len(verified.findings) == MOST_FINDINGS
    assert verified.left_out == MOST_FINDINGS + 1
    assert verified.faults >= MOST_FINDINGS


@st.composite
def edits(draw: st.DrawFn) -> tuple[bytes, int]:
    """A log with one edit in its bytes, and the number of a line whose head was kept and that the edit precedes."""
    content = b"".join(line + b"\n" for line in CHAIN)
    kept = draw(st.integers(1, LINES))
    end = sum(len(line) + 1 for line in CHAIN[:kept]) - 1
    start = draw(st.integers(0, end - 1))
    stop = draw(st.one_of(st.just(start + 1), st.integers(start, end)))
    inserted = draw(st.one_of(st.binary(max_size=40), st.sampled_from([line + b"\n" for line in CHAIN])))
    edited = content[:start] + inserted + content[stop:]
    assume(edited != content)
    return edited, kept


@given(edits())
def test_any_edit_before_a_kept_head_is_found(edit: tuple[bytes, int]) -> None:
    edited, kept = edit
    lines = edited.split(b"\n")[: None if not edited.endswith(b"\n") else -1]

    found = findings(lines, HEADS[kept])

    # A beginning of the next line may be inserted: it is reported, and no decision is missing or different.
    is_harmless = [line for line in lines if line in CHAIN][:kept] == CHAIN[:kept]
    assert any(one.is_fault for one in found) or (found and is_harmless)


@given(st.permutations(range(LINES)), st.integers(1, LINES))
def test_any_other_order_is_found(order: list[int], kept: int) -> None:
    assume(order[:kept] != sorted(order)[:kept])
    assert faults([CHAIN[place] for place in order], HEADS[kept])


@given(st.sets(st.integers(0, LINES - 1), min_size=1), st.integers(1, LINES))
def test_any_removed_lines_are_found(removed: set[int], kept: int) -> None:
    assume(min(removed) < kept)
    left = [line for place, line in enumerate(CHAIN) if place not in removed]
    # All lines up to the kept head may be in deleted files: that is a note.
    assert faults(left, HEADS[kept]) or (findings(left, HEADS[kept]) and removed >= {*range(kept)})
