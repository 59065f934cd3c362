"""Messages are decoded, or refused."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_passing.protocol import control_messages as messages
from support.random_lines import json, lines

EXAMPLES = (
    messages.Hello(messages.PROTOCOL_VERSION, "10.0.0.1", 7171, "a1"),
    messages.Rehearse(4),
    messages.Join(messages.PROTOCOL_VERSION, "job", 0, 2, ("a1",), 5000, "b2", 5.0, 1.5, {"jax": "0.10.0"}, 2.0),
    messages.Join(messages.PROTOCOL_VERSION + 1, "job", 0, 2, ("a1",), 5000, "b2", 5.0),
    messages.RackJoin(messages.PROTOCOL_VERSION, "job", "b2", "10.0.0.2:7171", 7171, "10.0.0.2", 2.0),
    messages.RankJoin(0, 2, "b2", "10.0.0.3", 1, {"jax": "0.10.0"}, 5.0, 4.0, 256, 360, False, ("a1",), 1.0, 2.0),
    messages.RankGone(1),
    messages.Prepare(1, 64, 360, True, (0, 1)),
    messages.Prepared(1),
    messages.GroupOffer("239.192.0.1", 7170, 1, 1, 5),
    messages.GroupReady(5, "no such device"),
    messages.GroupHeard(5),
    messages.GroupLost(),
    messages.Welcome(1, 1, 0, 256, 0, 360, contribution_secret=bytes(32), result_secret=bytes(32), link_gbit=1.0),
    messages.Refused("JoinError", "a text", 1),
    messages.Relay(b"\0order"),
    messages.Query(3, 1),
    messages.SlotState((1,), False, 5, True, (2,), "a text"),
    messages.Ask(1, 2, 1, 3, 0.5),
    messages.Answer(1, (1,), True, False, "a text"),
    messages.CountersQuery(),
    messages.Counters({"added": 5}),
    messages.StatusQuery(messages.PROTOCOL_VERSION),
    messages.Status({"jobs": [{"job": "a", "goodput_gbit": None}]}),
    messages.Heartbeat(),
    messages.Lifeline("f" * 32),
    messages.Leave(),
    messages.Leave(3),
    messages.Meet(9, "a", "b", 1, 3, 2, 5.0, started_as=2, alike={"wire_dtype": "int8"}),
    messages.Left((1, 2), 3, "rank 1 (10.0.0.2, started as rank 0) and rank 2 (10.0.0.3)"),
    messages.Bye(),
    messages.Fail("HostLostError", "a text", (1,)),
    messages.Failed("HostLostError", "a text", (1,)),
    messages.Meet(messages.PROTOCOL_VERSION, "job", "b2", 0, 2, 1, 5.0, 1.0, 7, 9, 2, 1, True, 2.0),
    messages.Met(9, 0, 2, 1, 7),
    messages.RackMeet(3, messages.Meet(messages.PROTOCOL_VERSION, "job", "b2", 0, 2, 1, 5.0)),
    messages.RackMet(3, messages.Met(9, 0, 2, 1)),
    messages.RackMet(3, messages.Refused("JoinError", "a text")),
)
NUMBERS = (3, 64, 1023, 1024, 65535, 65536, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 64, 10**400, 86401, 0.5)
LENGTHS = (160, 161, messages.TEXT_MAX, messages.TEXT_MAX + 1)
VALUES = (
    st.sampled_from([*(str(number) for number in NUMBERS), "1e999", "NaN", '"\\ud800"', '"AA=="', '["a"]'])
    | st.sampled_from(LENGTHS).map(lambda length: f'"{"a" * length}"')
    | json.map(lambda value: msgspec.json.encode(value).decode())
)


@st.composite
def almost_messages(draw):
    """A message, of whose fields some have another value, one is missing, or one is there that nobody knows."""
    fields = msgspec.json.decode(messages.encode(draw(st.sampled_from(EXAMPLES))), type=dict[str, msgspec.Raw])
    texts = {name: bytes(value).decode() for name, value in fields.items()}
    texts |= draw(st.dictionaries(st.sampled_from([*texts, "type", "unknown"]), VALUES, max_size=3))
    if draw(st.booleans()):
        del texts[draw(st.sampled_from([*texts]))]
    return ("{" + ",".join(f'"{name}":{value}' for name, value in texts.items()) + "}").encode()


@given(lines | almost_messages())
def test_a_line_is_a_message_or_one_kind_of_error(line):
    for decode in (
        messages.decode_from_member,
        messages.decode_first,
        messages.decode_from_switch,
        messages.decode_from_parent,
    ):
        try:
            message = decode(line)
        except msgspec.DecodeError as error:
            str(error).encode()  # it goes to the log
            continue
        again = messages.encode(message)
        assert again.find(b"\n") == len(again) - 1, "it is sent on as one line"
        assert decode(again) == message


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
    good = messages.Welcome(0xFFFF, 1, 0xFF00, 256, 63, 360)
    for decode in (messages.decode_from_switch, messages.decode_from_parent):
        assert decode(messages.encode(good)) == good
        with pytest.raises(msgspec.ValidationError, match=name):
            decode(messages.encode(msgspec.structs.replace(good, **{name: value})))


@pytest.mark.parametrize("bad", ["\x1b[2J", "a\nb", "a\n", "\r", "\x7f", "\x9b31m"])
def test_names_that_other_hosts_are_told_are_printable(bad):
    join = EXAMPLES[2]
    assert messages.decode_from_member(messages.encode(msgspec.structs.replace(join, host_name="node-1"))).host_name
    assert messages.decode_from_member(messages.encode(msgspec.structs.replace(join, job="größer 7/shard 1")))
    for changed in ({"host_name": bad}, {"job": bad}):
        with pytest.raises(msgspec.ValidationError):
            messages.decode_from_member(messages.encode(msgspec.structs.replace(join, **changed)))
    with pytest.raises(msgspec.ValidationError):
        messages.decode_from_member(messages.encode(msgspec.structs.replace(EXAMPLES[5], host=bad)))
