"""Messages are decoded, or refused."""

import contextlib

import msgspec
import pytest
from hypothesis import given

from jax_passing.protocol import control_messages as messages
from support.random_lines import lines


@given(lines)
def test_decoding_raises_one_kind_of_error(line):
    for decode in (messages.decode_from_member, messages.decode_from_switch, messages.decode_from_parent):
        with contextlib.suppress(msgspec.DecodeError):
            decode(line)


@pytest.mark.parametrize("line", [b'{"type":"\xff"}\n', b'{"a":' + b"[" * 30_000], ids=["UTF-8", "nested"])
def test_what_msgspec_has_other_errors_for(line):
    for decode in (
        messages.decode_from_member,
        messages.decode_first,
        messages.decode_from_switch,
        messages.decode_from_parent,
    ):
        with pytest.raises(msgspec.DecodeError):
            decode(line)


def test_a_foreign_versions_number_fits_into_a_fact():
    """A rack's switch tells its parent of it so."""
    join = {"type": "join", "job": "a", "rank": 0, "world_size": 2, "switches": ["s"], "udp_port": 1, "instance": "i"}
    for version, is_taken in ((99, True), (1 << 31, True), (10**300, False)):
        rest = msgspec.json.encode({**join, "join_deadline_s": 1.0})
        line = b'{"protocol_version":%d,' % version + rest.removeprefix(b"{")
        if is_taken:
            assert messages.decode_first(line).protocol_version == version
            msgspec.convert({"protocol version": str(version)}, messages.Facts)
        else:
            with pytest.raises(msgspec.DecodeError):
                messages.decode_first(line)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("job_id", 0),
        ("job_id", 1 << 16),
        ("epoch", 0),
        ("epoch", 1 << 16),
        ("slot_first", -1),
        ("slot_first", 1 << 16),
        ("slot_count", 0),
        ("worker", 64),
        ("lanes_per_chunk", 0),
        ("worker_limit", 65),
    ],
)
def test_a_welcome_has_numbers_that_fit_into_packets(name, value):
    good = messages.Welcome(0xFFFF, 1, 0xFF00, 256, 63, 360, 30.0)
    for decode in (messages.decode_from_switch, messages.decode_from_parent):
        assert decode(messages.encode(good)) == good
        with pytest.raises(msgspec.ValidationError, match=name):
            decode(messages.encode(msgspec.structs.replace(good, **{name: value})))
