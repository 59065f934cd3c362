"""A rack's switch and its parent say this to each other, in addition to what a host and its switch say."""

from typing import Annotated

from msgspec import Meta

from jax_passing.config import LEASE_S, RANKS_MAX, SHARDS_MAX, Gbit, LeaseSeconds, Seconds
from jax_passing.protocol.all_versions import ForeignRackJoin, Message, Refused
from jax_passing.protocol.meeting_messages import Meet, Met, Rehearse
from jax_passing.protocol.message_fields import (
    Facts,
    HostName,
    HostNonce,
    Lanes,
    Name,
    Nonce,
    Path,
    Plane,
    Rank,
    RankSet,
    SeatId,
    SlotCount,
    Text,
    Threads,
)


class RackJoin(ForeignRackJoin, frozen=True, forbid_unknown_fields=True):
    """A rack's switch says this first. `data_host`: the IP address that its packets come from; empty: that of this
    connection. `lease_s`: as in Join, the least of its hosts'."""

    data_host: Annotated[str, Meta(max_length=160)] = ""
    lease_s: LeaseSeconds = LEASE_S


class RankJoin(Message, frozen=True):
    """A rack's switch says that a rank is here, with its host's words, and the abilities of the switches on its way.

    `shards`: over how many switches the job is spread there. `host`: its IP address. `wait_s`: how long it still
    waits for the others. `slot_count`, `lanes_per_chunk` (exactly this number with `whole_chunks`), `link_gbit`,
    `switch_link_gbit`, `planes`: the least on its way. `tagged`: all switches on it have keys, and can tag packets.
    `path`: the instances of the switches on it. `started_as`, `host_name`, `host_nonce`, `threads`: as the host said.
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
    started_as: Rank | None = None
    host_name: HostName = ""
    host_nonce: HostNonce = b""
    planes: Threads = 1
    threads: Threads = 1


class RankGone(Message, frozen=True):
    """A rack's switch says that this rank doesn't wait any more."""

    rank: Rank


class Prepare(Message, frozen=True):
    """A parent says: all ranks are here. Reserve slots, find out whether yours hear multicast, then say Prepared.

    `ranks` are the receiver's, in the order of their numbers: it prepares once it has these and no other. `tagged`:
    packets have tags, between all switches and hosts. `planes`, `threads`: as in Welcome. Comes again, with another
    `attempt`, if a rank went away meanwhile.
    """

    attempt: Annotated[int, Meta(ge=1)]
    slot_count: SlotCount
    lanes_per_chunk: Lanes
    whole_chunks: bool
    ranks: RankSet
    tagged: bool = False
    planes: Threads = 1
    threads: Threads = 1


class Prepared(Message, frozen=True):
    """A rack's switch has prepared."""

    attempt: int


class Ask(Message, frozen=True):
    """A switch asks its parent or a rack's switch: on your side, who is missing in this chunk?

    `slot`: counted from the job's first one, at this plane.
    """

    id: Annotated[int, Meta(ge=0)]
    slot: Annotated[int, Meta(ge=0)]
    version: Annotated[int, Meta(ge=0, le=1)]
    sequence: Nonce
    patience_s: Seconds
    plane: Plane = 0


class Answer(Message, frozen=True):
    """This answers the Ask of this id. `received`: the asking switch's contribution is here; `complete`: the result
    too."""

    id: int
    missing: RankSet
    received: bool
    complete: bool
    trouble: Text = ""


class RackMeet(Message, frozen=True):
    """A rack's switch says this first, over one connection for all of its hosts that have seats in a job: the host in
    this one said so. Without `said` it has given the seat up, or is gone. `path`: the instances of the switches on its
    way. `host`: its IP address."""

    seat: SeatId
    said: Meet | None = None
    path: Path = ()
    host: Annotated[str, Meta(max_length=160)] = ""


class RackMet(Message, frozen=True):
    """A switch says to a rack's: this is for the host in this seat. Without `answer` its connection is to be closed."""

    seat: SeatId
    answer: Met | Rehearse | Refused | None = None
