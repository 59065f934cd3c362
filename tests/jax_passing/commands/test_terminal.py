"""Output of ranks on a terminal: lines and progress bars."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from jax_passing.commands.terminal import LineSplitter, TaggedOutput
from support.jobs.launching import screen


def split(*pieces):
    splitter = LineSplitter()
    found = [result for piece in pieces for result in splitter.feed(piece)]
    return found + list(splitter.feed(b"", final=True))


@pytest.mark.parametrize(
    ("pieces", "found"),
    [
        ([b"a\nb\n"], [(True, "a"), (True, "b")]),
        ([b"a", b"b\n"], [(True, "ab")]),
        ([b"a\r\nb"], [(True, "a"), (True, "b")]),
        ([b"\r10%", b"\r20%", b"\r30%\n"], [(False, "10%"), (False, "20%"), (True, "30%")]),
        ([b"10%\r", b"20%\r", b"done\n"], [(False, "10%"), (False, "20%"), (True, "done")]),
        ([b"\r1", b"0%"], [(False, "1"), (False, "10%"), (True, "10%")]),
        (
            [b"\x1b[?25l\r\x1b[2Kbar 1", b"\r\x1b[2Kbar 2", b"\n\x1b[?25h"],
            [(False, "bar 1"), (False, "bar 2"), (True, "bar 2")],
        ),
        ([b"\xc3", b"\xa9\n\xff\n"], [(True, "é"), (True, "�")]),
        ([b"\n\n"], [(True, ""), (True, "")]),
    ],
)
def test_splitting(pieces, found):
    assert split(*pieces) == found


def test_endless_lines_are_cut():
    assert sum(len(text) for _, text in split(*[b"x" * 10000] * 20)) == 200000


@given(st.lists(st.text(st.characters(blacklist_characters="\r\n\x1b", codec="utf-8")), min_size=1), st.integers(1, 5))
def test_lines_survive_any_cut(lines, size):
    data = "\n".join(lines).encode() + b"\n"
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert [text for is_over, text in split(*pieces) if is_over] == lines


def test_a_bar_stays_below_the_lines_of_others():
    file = io.StringIO()
    output = TaggedOutput(Console(file=file, force_terminal=True, width=40, color_system="standard"))
    output.refresh("rank 0", "10%")
    output.line("rank 1", "hello")
    output.refresh("rank 0", "20% " + "x" * 60)
    assert screen(file.getvalue())[0] == "[rank 1] hello"
    assert screen(file.getvalue())[1].startswith("[rank 0] 20% xx")
    assert len(screen(file.getvalue())[1]) == 39
    output.line("rank 0", "done")
    assert screen(file.getvalue()) == ["[rank 1] hello", "[rank 0] done", ""]


def test_without_a_terminal_bars_become_a_line_now_and_then():
    file = io.StringIO()
    output = TaggedOutput(Console(file=file, width=40))
    for percent in range(100):
        output.refresh("rank 0", f"{percent}%")
    output.line("rank 0", "100%")
    assert file.getvalue() == "[rank 0] 0%\n[rank 0] 100%\n"


def test_long_lines_and_markup_stay_as_they_are():
    file = io.StringIO()
    TaggedOutput(Console(file=file, width=20)).line("rank 0", "[bold]" + "x" * 100 + ":smile:")
    assert file.getvalue() == "[rank 0] [bold]" + "x" * 100 + ":smile:\n"
