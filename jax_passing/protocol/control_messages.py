"""What a host and the control plane say to each other: newline-delimited JSON over TCP, one message a line.

The switch greets with Hello; the host answers with Join and waits for Welcome or Refused. From then on both may speak
at any time. With a key, all of that goes by TLS (`secure_channel.py`).

A *rack's switch* speaks to its parent as a host does, for all of its ranks, one connection for each epoch of a job:
RackJoin first, then a RankJoin for each rank. When all ranks are there, the root says Prepare, down through all levels;
Prepared comes back, and Welcome ends it.
"""

from contextlib import suppress
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from jax_passing.config import RANKS_MAX, SHARDS_MAX, Gbit, Seconds
from jax_passing.protocol.keys import KEY_BYTES, packet_key
from jax_passing.protocol.packet import WORKERS_MAX

PROTOCOL_VERSION = 8
HEARTBEATS_PER_LEASE = 6  # a few may come late
LEVELS_MAX = 8
FACTS_MAX = 16
TEXT_MAX = 16 * 1024  # characters; who composes a text of what others say cuts it
LINE_BYTES_MAX = 64 * 1024
RELAY_BYTES_MAX = 1024 * 1024
RELAYED_ORDER, RELAYED_PROGRAM = b"\0", b"\1"
# Base64 takes 4 bytes for 3; the rest of the line is short.
RELAY_LINE_BYTES_MAX = RELAY_BYTES_MAX * 4 // 3 + 1024

Version = Annotated[int, Meta(ge=0, le=1 << 31)]  # a fact of a host has room for its digits
Port = Annotated[int, Meta(ge=1, le=65535)]
Rank = Annotated[int, Meta(ge=0, lt=RANKS_MAX)]
RankSet = Annotated[tuple[Rank, ...], Meta(max_length=RANKS_MAX)]
Text = Annotated[str, Meta(max_length=TEXT_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=160)]  # a job's 128, and our suffix
Id = Annotated[int, Meta(ge=1, le=65535)]
SlotCount = Annotated[int, Meta(ge=1, le=1 << 16)]  # a power of two
Lanes = Annotated[int, Meta(ge=3, le=65535)]  # an int64 takes three
Nonce = Annotated[int, Meta(ge=0, lt=1 << 32)]
Path = Annotated[tuple[Name, ...], Meta(max_length=LEVELS_MAX)]
SeatId = Annotated[int, Meta(ge=0, lt=1 << 32)]  # of one connection
MeetingId = Annotated[int, Meta(ge=0, lt=1 << 62)]  # random: two switches may each hold a meeting of one job
FactName = Annotated[str, Meta(min_length=1, max_length=64)]
FactValue = Annotated[str, Meta(max_length=256)]  # so that all of them are well below LINE_BYTES_MAX
Facts = Annotated[dict[FactName, FactValue], Meta(max_length=FACTS_MAX)]
Secret = Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]


T = TypeVar("T")


class Message(Struct, frozen=True, tag=str.lower, tag_field="type", forbid_unknown_fields=True):
    pass


class ForeignVersionError(msgspec.DecodeError):
    """A first message that can't be understood, of another version."""

    def __init__(self, version: int):
        super().__init__(f"it speaks protocol version {version}, we speak {PROTOCOL_VERSION}")
        self.version = version


class _Versioned(Struct, frozen=True):
    """What may be read of a first message of any version."""

    protocol_version: Version


class Hello(Message, frozen=True, forbid_unknown_fields=False):
    """A switch says first who it is, and where packets go. `secured`: whoever joins must have a key, and speak TLS from
    the first byte on. By TLS it is the switch's own word. Another version's may say more."""

    protocol_version: Version
    data_host: str  # for racks' switches an IP address; empty: the host of this connection
    data_port: Port
    instance: Name  # tells this switch from any other, whatever its addresses
    secured: bool = False


class ForeignJoin(Message, frozen=True, tag="join", forbid_unknown_fields=False):
    """What a host of any version says first, among more. These fields, Hello and Refused stay what they are in all
    versions, so that hosts and switches of different ones can tell their users.

    `switches`: the instances of all that the job is spread over, this one among them, in the order of its shards.
    `instance` tells this process from any other, so that it may replace a connection of its own: it is random, and
    switches tell it to their parents only.
    """

    protocol_version: Version
    job: Name
    rank: Annotated[int, Meta(ge=0)]
    world_size: Annotated[int, Meta(ge=1)]
    switches: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=SHARDS_MAX)]
    udp_port: Port
    instance: Name
    join_deadline_s: Seconds


class Join(ForeignJoin, frozen=True, forbid_unknown_fields=True):
    """Host, first. `link_gbit`: the rate of its link, if it knows it. `alike`: facts that must be equal on all hosts,
    by name; one that isn't there is empty."""

    link_gbit: Gbit | None = None
    alike: Facts = {}


class ForeignRackJoin(Message, frozen=True, tag="rackjoin", forbid_unknown_fields=False):
    """What a rack's switch of any version says first, as ForeignJoin. `name`: its address, for people. `instance` is as
    a host's, not the one of its Hello, which anybody may read."""

    protocol_version: Version
    job: Name
    instance: Name
    name: Name
    udp_port: Port


class RackJoin(ForeignRackJoin, frozen=True, forbid_unknown_fields=True):
    """A rack's switch, first. `data_host`: the IP address that its packets come from; empty: that of this
    connection."""

    data_host: Annotated[str, Meta(max_length=160)] = ""


class RankJoin(Message, frozen=True):
    """A rack's switch: this rank is here. What its host said, and what the switches on its way can do.

    `shards`: over how many switches the job is spread there. `host`: its IP address. `wait_s`: how long it still
    waits for the others. `slot_count`, `lanes_per_chunk` (exactly so many with `whole_chunks`), `link_gbit`,
    `switch_link_gbit`: the least on its way. `tagged`: all switches on it have keys, and can tag packets. `path`: the
    instances of the switches on it.
    """

    rank: Rank
    world_size: Annotated[int, Meta(ge=1, le=RANKS_MAX)]
    instance: Name
    host: Name
    shards: Annotated[int, Meta(ge=1, le=SHARDS_MAX)]
    alike: Facts
    join_deadline_s: Seconds
    wait_s: Seconds
    slot_count: SlotCount
    lanes_per_chunk: Lanes
    whole_chunks: bool
    path: Annotated[Path, Meta(min_length=1)]
    link_gbit: Gbit | None = None
    switch_link_gbit: Gbit | None = None
    tagged: bool = False


class RankGone(Message, frozen=True):
    """A rack's switch: this rank doesn't wait any more."""

    rank: Rank


class Prepare(Message, frozen=True):
    """Parent: all ranks are here. Reserve slots, find out whether yours hear multicast, then say Prepared.

    `ranks` are the receiver's, in the order of their numbers: it prepares once it has these and no other. `tagged`:
    packets have tags, between all switches and hosts. Comes again, with another `attempt`, if a rank went away
    meanwhile.
    """

    attempt: Annotated[int, Meta(ge=1)]
    slot_count: SlotCount
    lanes_per_chunk: Lanes
    whole_chunks: bool
    ranks: RankSet
    tagged: bool = False


class Prepared(Message, frozen=True):
    """A rack's switch."""

    attempt: int


class GroupOffer(Message, frozen=True):
    """Switch, when all ranks are here: join this multicast group, tell GroupReady, listen for probes.

    Comes again, with another nonce, if a rank went away meanwhile. Welcome, which may come at any time, ends it.
    """

    address: Name
    port: Port
    job_id: Id
    epoch: Id
    nonce: Nonce  # of the probes


class GroupReady(Message, frozen=True):
    """Host: it has joined the group of this nonce, or has this problem with it."""

    nonce: Nonce
    problem: Text = ""


class GroupHeard(Message, frozen=True):
    """Host: it has heard all probes of this nonce."""

    nonce: Nonce


class GroupLost(Message, frozen=True):
    """Host: results don't come by multicast any more."""


class Welcome(Message, frozen=True):
    """Switch: all ranks are here, the slots are reserved.

    It is the same to all, so that they plan alike, except for `worker`: which one of the switch's workers the host is,
    its bit in a slot's bitmap. `whole_chunks`: this switch takes packets of exactly `lanes_per_chunk` lanes; what a
    chunk leaves free is zero in a contribution and ignored in a result. `multicast`: results go to the group that was
    offered last. `contribution_secret`, `result_secret`: if packets have tags, what their keys are derived from; the
    former is this worker's alone. `nonce`: the root's, drawn for this epoch. `link_gbit`: the slowest host's link, of
    those that are known; `switch_link_gbit`: the one link behind which the switch stands, None if it has a port for
    each host.
    """

    job_id: Id
    epoch: Id
    slot_first: Annotated[int, Meta(ge=0, lt=1 << 16)]
    slot_count: SlotCount
    worker: Annotated[int, Meta(ge=0, lt=WORKERS_MAX)]
    lanes_per_chunk: Lanes
    lease_s: Seconds
    whole_chunks: bool = False
    worker_limit: Annotated[int, Meta(ge=1, le=WORKERS_MAX)] = WORKERS_MAX  # how many a job may have at this switch
    multicast: bool = False
    contribution_secret: Secret | None = None
    result_secret: Secret | None = None
    nonce: Annotated[bytes, Meta(max_length=KEY_BYTES)] = b""
    link_gbit: Gbit | None = None
    switch_link_gbit: Gbit | None = None

    @property
    def packet_keys(self) -> tuple[bytes, bytes] | None:
        """Of our contributions and of results; None if packets have no tags."""
        if self.contribution_secret is None or self.result_secret is None:
            return None
        return packet_key(self.contribution_secret), packet_key(self.result_secret)


class Meet(Message, frozen=True):
    """Host, first, to the first of its switches, before it joins: I wait to meet the others (docs/train/elastic.md).

    The connection is the host's seat in the job, and stays open until its session ends: whoever has a seat is waited
    for. Comes again on it for each meeting; what was said before is then void.

    `rank`: the one that it had, or that its launcher gave it. `step`: the last one that it completed, if it has the
    state after it. `meeting`: the last one that it was in, 0 if none, and `hosts` how many of those that were there it
    doesn't know to be lost. `world_size`: how many hosts the job wants, `world_size_min`: the fewest.
    `quorum`: how many of that meeting must be here, lest others of them meet somewhere else. `wait_s`: how long it
    waits for more than the hosts that must be waited for, `deadline_s`: in all. `aside`: it waits at a switch that goes
    before this one, too, and would rather meet there.
    """

    protocol_version: Version
    job: Name
    instance: Name
    rank: Rank
    world_size: Annotated[int, Meta(ge=1, le=RANKS_MAX)]
    world_size_min: Annotated[int, Meta(ge=1, le=RANKS_MAX)]
    deadline_s: Seconds
    wait_s: Annotated[float, Meta(ge=0, le=86400)] = 0.0
    step: Annotated[int, Meta(ge=0, lt=1 << 62)] | None = None
    meeting: MeetingId = 0
    hosts: Annotated[int, Meta(ge=0, le=RANKS_MAX)] = 0
    quorum: Annotated[int, Meta(ge=0, le=RANKS_MAX)] = 0
    aside: bool = False


class Met(Message, frozen=True):
    """Switch, to all who meet: join as this rank of so many.

    `survivors`: the ranks below have the state after `step`, or after the next one; None: nobody has any.
    """

    meeting: MeetingId
    rank: Rank
    world_size: Annotated[int, Meta(ge=1, le=RANKS_MAX)]
    survivors: Annotated[int, Meta(ge=0, le=RANKS_MAX)]
    step: Annotated[int, Meta(ge=0)] | None = None


class Refused(Message, frozen=True, forbid_unknown_fields=False):
    """Switch: no admission; it closes the connection. Between switches, if there is a `rank`: only of this one. Another
    version's may say more."""

    kind: Name
    message: Text
    rank: Rank | None = None


class RackMeet(Message, frozen=True):
    """A rack's switch, first, over one connection for all of its hosts that have seats in a job: the host in this one
    says so. Without `said` it has given the seat up, or is gone. `path`: the instances of the switches on its way."""

    seat: SeatId
    said: Meet | None = None
    path: Path = ()


class RackMet(Message, frozen=True):
    """Switch, to a rack's: this is for the host in this seat. Without `answer` its connection is to be closed."""

    seat: SeatId
    answer: Met | Refused | None = None


class Relay(Message, frozen=True):
    """Rank 0, or the switch below which it is: hand this to all other ranks, in order. Switch: rank 0 said this.

    The payload is the hosts' own business. Its first byte says what it is: RELAYED_ORDER, then an order message of the
    transport's; RELAYED_PROGRAM, then what host/programs.py encodes.
    """

    payload: Annotated[bytes, Meta(max_length=RELAY_BYTES_MAX)]


class Query(Message, frozen=True):
    """Host: who is missing in this slot version? Without a slot: who has left? While it waits to join, or to meet the
    others: for whom?"""

    slot: Annotated[int, Meta(ge=0)] | None = None
    version: Annotated[int, Meta(ge=0, le=1)] = 0


class SlotState(Message, frozen=True):
    """Switch, to the host that asked: which ranks aren't in the slot version, and which have left the job.

    `complete`: the result is here. `trouble`: between which switches it is stuck, if so; of an empty one, why the
    switch knows nothing of it. To a host that waits to join, or to meet the others, only `trouble` says anything: for
    whom.
    """

    left: RankSet
    empty: bool = True
    sequence: int = 0
    complete: bool = False
    missing: RankSet = ()
    trouble: Text = ""


class Ask(Message, frozen=True):
    """A switch, to its parent or to a rack's switch: on your side, who is missing in this chunk?

    `slot`: counted from the job's first one.
    """

    id: Annotated[int, Meta(ge=0)]
    slot: Annotated[int, Meta(ge=0)]
    version: Annotated[int, Meta(ge=0, le=1)]
    sequence: Nonce
    patience_s: Seconds


class Answer(Message, frozen=True):
    """To an Ask of this id. `received`: what the asking switch contributes is here; `complete`: the result too."""

    id: int
    missing: RankSet
    received: bool
    complete: bool
    trouble: Text = ""


class CountersQuery(Message, frozen=True):
    """Host: what has the switch counted?"""


class Counters(Message, frozen=True):
    """Switch, to the host that asked: its data plane's counters since its start, of all jobs. Verdicts are by name."""

    values: dict[str, int]


class Heartbeat(Message, frozen=True):
    """Host: still alive. The switch echoes it."""


class Leave(Message, frozen=True):
    """Host: no more sums. The switch says Bye when all ranks have left."""


class Left(Message, frozen=True):
    """Between switches: there will be no more sums of these ranks."""

    ranks: RankSet


class Bye(Message, frozen=True):
    pass


class Fail(Message, frozen=True):
    """Host: the job can't go on."""

    kind: Name
    message: Text
    ranks: RankSet = ()


class Failed(Message, frozen=True):
    """Switch: the job is over."""

    kind: Name
    message: Text
    ranks: RankSet = ()


FromHost = Join | Meet | GroupReady | GroupHeard | GroupLost | Relay | Query | CountersQuery | Heartbeat | Leave | Fail
FromRack = RackJoin | RackMeet | RankJoin | RankGone | Prepared | Refused | Left | Ask | Answer
FromMember = FromHost | FromRack
FromSwitch = Hello | Met | GroupOffer | Welcome | Refused | Relay | SlotState | Counters | Heartbeat | Bye | Failed
FromParent = FromSwitch | RackMet | Prepare | Left | Ask | Answer

_encoder = msgspec.json.Encoder()
_from_member = msgspec.json.Decoder(FromMember)
_foreign_first = msgspec.json.Decoder(ForeignJoin | ForeignRackJoin)
_versioned = msgspec.json.Decoder(_Versioned)
_from_switch = msgspec.json.Decoder(FromSwitch)
_from_parent = msgspec.json.Decoder(FromParent)


def encode(message: Message) -> bytes:
    """One line."""
    return _encoder.encode(message) + b"\n"


def decode(decoder: msgspec.json.Decoder[T], line: bytes | str) -> T:
    """Raises msgspec.DecodeError, whatever is wrong with the line. Bytes that aren't UTF-8 and brackets that nest too
    deeply are other errors to msgspec, and may come from the network as well."""
    try:
        return decoder.decode(line)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def decode_from_member(line: bytes) -> FromMember:
    """What a host or a rack's switch says. Raises msgspec.DecodeError (malformed) or its subclass ValidationError."""
    return decode(_from_member, line)


def decode_first(line: bytes) -> FromMember:
    """The same for the first message, which may be of another version. Raises ForeignVersionError if it is, and isn't
    understood."""
    try:
        return decode_from_member(line)
    except msgspec.ValidationError:
        with suppress(msgspec.DecodeError):
            join = decode(_foreign_first, line)
            if join.protocol_version != PROTOCOL_VERSION:
                ours = Join if isinstance(join, ForeignJoin) else RackJoin
                return ours(**msgspec.structs.asdict(join))
        _raise_if_foreign(line)
        raise


def decode_from_switch(line: bytes) -> FromSwitch:
    """What a host hears. Raises msgspec.DecodeError; ForeignVersionError if it is another version's greeting."""
    try:
        return decode(_from_switch, line)
    except msgspec.ValidationError:
        _raise_if_foreign(line)
        raise


def decode_from_parent(line: bytes) -> FromParent:
    """What a rack's switch hears. Raises as decode_from_switch."""
    try:
        return decode(_from_parent, line)
    except msgspec.ValidationError:
        _raise_if_foreign(line)
        raise


def _raise_if_foreign(line: bytes) -> None:
    try:
        version = decode(_versioned, line).protocol_version
    except msgspec.DecodeError:
        return
    if version != PROTOCOL_VERSION:
        raise ForeignVersionError(version)
