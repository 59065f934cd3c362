"""A host and its switch say this to each other about a job: how it joins, runs and ends."""

from typing import Annotated

import msgspec
from msgspec import Meta

from jax_passing.config import LEASE_S, RANKS_MAX, Gbit, LeaseSeconds
from jax_passing.protocol.all_versions import ForeignJoin, Message
from jax_passing.protocol.keys import KEY_BYTES, packet_key
from jax_passing.protocol.message_fields import (
    RELAY_BYTES_MAX,
    Count,
    Facts,
    HostName,
    HostNonce,
    Id,
    Lanes,
    Name,
    Nonce,
    Plane,
    Port,
    Rank,
    RankSet,
    Secret,
    SlotCount,
    SumName,
    Text,
    Threads,
)
from jax_passing.protocol.packet import LANES_AT_MTU_1500, WORKERS_MAX


class Join(ForeignJoin, frozen=True, forbid_unknown_fields=True):
    """A host says this first. `link_gbit`: the rate of its link, if it knows it. `alike`: facts that must be equal on
    all hosts, by name; one that isn't there is empty. `lease_s`: how long it may be silent, and the switch as well,
    unless the switch's own lease is shorter. `started_as`: the rank that its launcher gave it, if its session is
    elastic: people know it by that. `host_name`: its machine's. `host_nonce`: drawn for this epoch, for the key of
    confidential sums. `planes`: the least of those switches. `threads`: how many it wants to sum with. `lanes`: the
    most of a packet that its path to the switch carries."""

    link_gbit: Gbit | None = None
    alike: Facts = msgspec.field(default_factory=dict)
    lease_s: LeaseSeconds = LEASE_S
    started_as: Rank | None = None
    host_name: HostName = ""
    host_nonce: HostNonce = b""
    planes: Threads = 1
    threads: Threads = 1
    lanes: Lanes = LANES_AT_MTU_1500


class GroupOffer(Message, frozen=True):
    """The switch says, when all ranks are here: join this multicast group, tell GroupReady, listen for probes.

    Comes again, with another nonce, if a rank went away meanwhile. Welcome, which may come at any time, ends it.
    """

    address: Name
    port: Port
    job_id: Id
    epoch: Id
    nonce: Nonce  # of the probes


class GroupReady(Message, frozen=True):
    """The host has joined the group of this nonce, or has this problem with it."""

    nonce: Nonce
    problem: Text = ""


class GroupHeard(Message, frozen=True):
    """The host has heard all probes of this nonce."""

    nonce: Nonce


class GroupLost(Message, frozen=True):
    """The host says that results don't come by multicast any more."""


class Welcome(Message, frozen=True):
    """The switch says that all ranks are here, and the slots are reserved.

    It is the same to all, so that they plan alike, except for `worker`: which one of the switch's workers the host is,
    its bit in a slot's bitmap. `whole_chunks`: this switch takes packets of exactly `lanes_per_chunk` lanes; what a
    chunk leaves free is zero in a contribution and ignored in a result. `bare`: it knows packets without lanes, and
    leaves out those of results that a worker doesn't need. `multicast`: results go to the group that was offered last.
    `contribution_secret`, `result_secret`: if packets have tags, the secrets of their keys; the former is this worker's
    alone. `nonce`: the root's, drawn for this epoch. `host_nonces`: those of all ranks, in their order, if each has
    one. `link_gbit`: the slowest host's link, of those that are known; `switch_link_gbit`: the one link behind which
    the switch stands, None if it has a port for each host. `ranks_at_port`: how many ranks send to one port of the
    network, that of the switch or of one above it; 1 if all of these have a port for each. `planes`: of each switch,
    the job is at so many, with the same numbers. `threads`: the least of what the hosts want, and no more
    than can share these planes.
    """

    job_id: Id
    epoch: Id
    slot_first: Annotated[int, Meta(ge=0, lt=1 << 16)]
    slot_count: SlotCount
    worker: Annotated[int, Meta(ge=0, lt=WORKERS_MAX)]
    lanes_per_chunk: Lanes
    whole_chunks: bool = False
    bare: bool = False
    worker_limit: Annotated[int, Meta(ge=1, le=WORKERS_MAX)] = WORKERS_MAX  # how many a job may have at this switch
    multicast: bool = False
    contribution_secret: Secret | None = None
    result_secret: Secret | None = None
    nonce: Annotated[bytes, Meta(max_length=KEY_BYTES)] = b""
    host_nonces: Annotated[tuple[HostNonce, ...], Meta(max_length=RANKS_MAX)] = ()
    link_gbit: Gbit | None = None
    switch_link_gbit: Gbit | None = None
    ranks_at_port: Annotated[int, Meta(ge=1, le=WORKERS_MAX)] = 1
    planes: Threads = 1
    threads: Threads = 1

    @property
    def packet_keys(self) -> tuple[bytes, bytes] | None:
        """Returns the keys of our contributions and of results; None if packets have no tags."""
        if self.contribution_secret is None or self.result_secret is None:
            return None
        return packet_key(self.contribution_secret), packet_key(self.result_secret)


class Relay(Message, frozen=True):
    """Rank 0, or the switch below which it is, says: hand this to all other ranks, in order. Another rank says: hand
    this to rank 0. The switch says: that is what was said.

    The payload is the hosts' own business. Its first byte says what it is: RELAYED_ORDER, then an order message of the
    transport's; RELAYED_PROGRAM, then what host/control/programs.py encodes, which only rank 0 says.
    """

    payload: Annotated[bytes, Meta(max_length=RELAY_BYTES_MAX)]


class Query(Message, frozen=True):
    """A host asks: who is missing in this slot version? Without a slot: who has left? While it waits to join, or to
    meet the others: for whom? `sum`: in which sum it waits, for people. `plane`: where the slot is."""

    slot: Annotated[int, Meta(ge=0)] | None = None
    version: Annotated[int, Meta(ge=0, le=1)] = 0
    sum: SumName = ""
    plane: Plane = 0


class SlotState(Message, frozen=True):
    """The switch tells the host that asked which ranks aren't in the slot version, and which have left the job.

    `complete`: the result is here. `trouble`: between which switches it is stuck, if so; of an empty one, why the
    switch knows nothing of it. To a host that waits to join, or to meet the others, only `trouble` says anything: for
    whom. `who`: the missing ranks, for people, if their hosts are known.
    """

    left: RankSet
    empty: bool = True
    sequence: int = 0
    complete: bool = False
    missing: RankSet = ()
    trouble: Text = ""
    who: Text = ""


class Awaited(Message, frozen=True):
    """The switch tells a host that another one waits for it in a sum, for people. `who`: that other one."""

    who: Text
    sum: SumName = ""


class CountersQuery(Message, frozen=True):
    """A host asks: what has the switch counted?"""


class Counters(Message, frozen=True):
    """The switch tells the host that asked its data plane's counters since its start, of all jobs. Verdicts are by
    name."""

    values: dict[str, int]


class WriteRecord(Message, frozen=True):
    """The switch asks a host, or a rack's switch for its hosts, to write a flight record: somebody wants to know why
    the job stands still."""


class Heartbeat(Message, frozen=True):
    """The host says that it is alive, from its join on, or from where it has a seat. The switch echoes it."""


class Lifeline(Message, frozen=True):
    """A second connection of a host says this alone, and empty lines from then on, six times a lease: a thread sends
    them that needs no lock of Python's. `token`: that of the Hello of the first connection."""

    token: Name


class Leave(Message, frozen=True):
    """The host wants no more sums. `sums`: how many it has started and completed, if it says so. The switch says Bye
    when all ranks have left."""

    sums: Count | None = None


class Left(Message, frozen=True):
    """A switch says that there will be no more sums of these ranks: to other switches each time, to its hosts when the
    first rank leaves. `sums`: as many were completed by each rank that has left, and so by all. More there won't be.
    `who`: these ranks, for people, if their hosts are known."""

    ranks: RankSet
    sums: Count | None = None
    who: Text = ""


class Bye(Message, frozen=True):
    pass


class Fail(Message, frozen=True):
    """The host says that the job can't go on."""

    kind: Name
    message: Text
    ranks: RankSet = ()


class Failed(Message, frozen=True):
    """The switch says that the job is over."""

    kind: Name
    message: Text
    ranks: RankSet = ()
