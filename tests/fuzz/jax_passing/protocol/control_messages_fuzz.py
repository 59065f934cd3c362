"""Whatever a line holds, it is a message or a DecodeError; and what is a message is one again once it is sent on.

The input's first byte says who listens, the second says which of the examples below the line is, its fields changed as
the following bytes say; or the rest of the input is the line.
"""

import msgspec

from jax_passing.config import RANKS_MAX
from jax_passing.protocol import control_messages as messages

DECODERS = (
    messages.decode_from_member,
    messages.decode_first,
    messages.decode_from_switch,
    messages.decode_from_parent,
)
EXAMPLES = (
    messages.Hello(messages.PROTOCOL_VERSION, "10.0.0.1", 7171, "a1"),
    messages.Join(messages.PROTOCOL_VERSION, "job", 0, 2, ("a1",), 5000, "b2", 5.0, 1.5, {"jax": "0.10.0"}),
    messages.Join(messages.PROTOCOL_VERSION + 1, "job", 0, 2, ("a1",), 5000, "b2", 5.0),
    messages.RackJoin(messages.PROTOCOL_VERSION, "job", "b2", "10.0.0.2:7171", 7171, "10.0.0.2"),
    messages.RankJoin(0, 2, "b2", "10.0.0.3", 1, {"jax": "0.10.0"}, 5.0, 4.0, 256, 360, False, ("a1",), 1.0, 2.0),
    messages.RankGone(1),
    messages.Prepare(1, 64, 360, True, (0, 1)),
    messages.Prepared(1),
    messages.GroupOffer("239.192.0.1", 7172, 1, 1, 5),
    messages.GroupReady(5, "no such device"),
    messages.GroupHeard(5),
    messages.GroupLost(),
    messages.Welcome(1, 1, 0, 256, 0, 360, 30.0, contribution_secret=bytes(32), result_secret=bytes(32), link_gbit=1.0),
    messages.Refused("JoinError", "a text", 1),
    messages.Relay(b"\0order"),
    messages.Query(3, 1),
    messages.SlotState((1,), False, 5, True, (2,), "a text"),
    messages.Ask(1, 2, 1, 3, 0.5),
    messages.Answer(1, (1,), True, False, "a text"),
    messages.CountersQuery(),
    messages.Counters({"added": 5}),
    messages.Heartbeat(),
    messages.Leave(),
    messages.Left((1, 2)),
    messages.Bye(),
    messages.Fail("HostLostError", "a text", (1,)),
    messages.Failed("HostLostError", "a text", (1,)),
    messages.Meet(messages.PROTOCOL_VERSION, "job", "b2", 0, 2, 1, 5.0, 1.0, 7, 9, 2, 1, True),
    messages.Met(9, 0, 2, 1, 7),
    messages.RackMeet(3, messages.Meet(messages.PROTOCOL_VERSION, "job", "b2", 0, 2, 1, 5.0)),
    messages.RackMet(3, messages.Met(9, 0, 2, 1)),
    messages.RackMet(3, messages.Refused("JoinError", "a text")),
)
NUMBERS = (0, 1, -1, 3, 64, 1023, 1024, 65535, 65536, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 64) - 1, 1 << 64, 10**400)
TEXTS = (
    "",
    "a",
    "ä",
    "\ud800",
    "\n",
    "\0",
    "a" * 160,
    "a" * 161,
    "a" * messages.TEXT_MAX,
    "a" * (messages.TEXT_MAX + 1),
)
VALUES = tuple(
    text.encode("utf-8", "surrogatepass")
    for text in (
        *map(str, NUMBERS),
        *("0.0", "0.5", "-0.5", "1e3", "1e999", "86401", "NaN", "null", "true", "[]", "{}", "[0]", "[-1]", '["a"]'),
        *('{"a":"b"}', '{"":"b"}', '{"a":1}', '"AAAA"', '"AA=="', '"A"', '"\\ud800"', "[" * 900 + "]" * 900),
        *(f'"{text}"' for text in TEXTS),
        str([0] * RANKS_MAX),
        str([0] * (RANKS_MAX + 1)),
        str(dict.fromkeys(map(str, range(17)), "")).replace("'", '"'),
    )
)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _line(rest: bytes) -> bytes:
    if not rest or rest[0] % 64 >= len(EXAMPLES):
        return rest[1:]
    fields = {name: bytes(value) for name, value in _fields.decode(messages.encode(EXAMPLES[rest[0] % 64])).items()}
    names = [*fields, "type", "unknown"]
    for which, what in zip(rest[1:9:2], rest[2:9:2], strict=False):
        fields[names[which % len(names)]] = VALUES[what % len(VALUES)] if what < 250 else rest[9:]
        if what == 249:
            del fields[names[which % len(names)]]
    return b"{" + b",".join(b'"%s":%s' % (name.encode(), value) for name, value in fields.items()) + b"}"


def test_one_input(data: bytes) -> None:
    decode = DECODERS[data[0] % len(DECODERS)] if data else messages.decode_first
    try:
        message = decode(_line(data[1:]))
    except msgspec.DecodeError as error:
        str(error).encode()  # it goes to the log
        return
    line = messages.encode(message)
    assert line.find(b"\n") == len(line) - 1, line
    is_foreign = isinstance(message, messages.Join) and message.protocol_version != messages.PROTOCOL_VERSION
    again = messages.decode_first(line) if is_foreign else decode(line)
    assert again == message, (message, again)
