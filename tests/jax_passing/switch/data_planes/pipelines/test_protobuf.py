"""Protocol Buffers' wire format: the examples of its documentation, and bytes that are none."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_passing.switch.data_planes.pipelines import protobuf
from jax_passing.switch.data_planes.pipelines.protobuf import decode, encode


@pytest.mark.parametrize(
    ("fields", "encoded"),
    [
        ([(1, 150)], "089601"),
        ([(2, "testing")], "120774657374696e67"),
        ([(3, encode((1, 150)))], "1a03089601"),
        ([(1, 0), (2, ""), (3, encode((1, 0)))], "080012001a020800"),
        ([(16, 1)], "800101"),
        ([(1, (1 << 64) - 1)], "08ffffffffffffffffff01"),
    ],
)
def test_as_the_documentation_writes_it(fields, encoded):
    assert encode(*fields).hex() == encoded


def test_every_wire_type_is_read():
    message = decode(bytes.fromhex("08011101020304050607081a016125010203040802"))
    assert message == {1: [1, 2], 2: [bytes(range(1, 9))], 3: [b"a"], 4: [bytes(range(1, 5))]}
    assert protobuf.number(message, 1) == 2  # the last one counts
    assert (protobuf.number(message, 9), protobuf.data(message, 9), protobuf.text(message, 3)) == (0, b"", "a")


@pytest.mark.parametrize("data", ["08", "0896", "1203aa", "11010203", "0b", "08" + "ff" * 11])
def test_what_is_no_message(data):
    with pytest.raises(ValueError, match=r"\w"):
        decode(bytes.fromhex(data))


def test_fields_of_another_type():
    message = decode(encode((1, 5), (2, "a")))
    with pytest.raises(ValueError, match="is no number"):
        protobuf.number(message, 2)
    with pytest.raises(ValueError, match="is a number"):
        protobuf.data(message, 1)


@given(st.dictionaries(st.integers(1, 1000), st.one_of(st.integers(1, (1 << 64) - 1), st.binary())))
def test_what_is_written_is_read(fields):
    assert decode(encode(*fields.items())) == {number: [value] for number, value in fields.items()}


@given(st.binary())
def test_any_bytes_are_read_or_refused(data):
    with contextlib.suppress(ValueError):
        decode(data)
