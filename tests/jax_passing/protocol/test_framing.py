"""Lines of a connection, whatever the pieces in which they come."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_passing.protocol.framing import Lines


def lines_of(lines, bytes_max):
    found = []
    while (line := lines.next(bytes_max)) is not None:
        found.append(line)
    return found


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_lines_dont_depend_on_the_pieces(pieces):
    lines, found = Lines(), []
    for piece in pieces:
        lines.add(piece)
        found += lines_of(lines, 1000)
    *whole, rest = b"".join(pieces).split(b"\n")
    assert (found, lines.rest_bytes, lines.has_line) == (whole, len(rest), False)


@pytest.mark.parametrize("end", [b"\n", b""], ids=["complete", "not yet"])
def test_a_line_that_is_too_long(end):
    lines = Lines()
    lines.add(b"first\n" + b"x" * 10 + end)
    assert lines.next(10) == b"first"
    lines.add(b"" if end else b"x")
    with pytest.raises(msgspec.DecodeError, match="too long"):
        lines.next(9 if end else 10)
