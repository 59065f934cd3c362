"""A switch knows this of a job: its epoch, the members of that, and the ranks that each of them holds."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from jax_passing.errors import names
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.outside import Connection
from jax_passing.protocol.plane_sockets import PlaneSockets
from jax_passing.switch.data_planes.data_plane import MulticastGroup
from jax_passing.switch.jobs.epoch_states import NEXT, EpochState, Event
from jax_passing.switch.jobs.group_probe import GroupProbe

SHOWN_MAX = 4  # ranks, with their hosts


class ParentConnection(Protocol):
    """This is the way to the parent, for one epoch: `tree/uplink.py`, which this room can't import, as it is made of
    jobs."""

    @property
    def name(self) -> str:
        """Returns the parent's address, for people."""

    @property
    def data_address(self) -> tuple[str, int]:
        """Returns where its data plane listens; once connected."""

    @property
    def socket(self) -> PlaneSockets | None:
        """Returns how our data plane speaks to it; None if by its own data port."""

    @property
    def is_connected(self) -> bool: ...

    def send(self, message: messages.Message) -> bool:
        """Never waits. False if the parent has stopped reading. Without a connection it is told later."""

    def tell_of(self, member: "Member", rank: int) -> None:
        """Tells the parent that a rank of ours is here."""

    def explain(self, text: str) -> str:
        """Says why hosts wait in vain: `text` says for what."""

    def check_group(self, is_heard: bool) -> None:
        """Is called while the epoch runs, with whether results come by multicast."""

    def start(self) -> None:
        """Calls the parent."""

    def close(self) -> None:
        """Hangs up, as the epoch is over."""


class Inquiry(Protocol):
    """This is a question that other switches have been asked."""

    def cancel(self) -> None:
        """Is called when nobody wants the answer any more."""


@dataclass(eq=False)
class Member:
    """A member has a connection that may join an epoch: it is a host with one rank, or the switch of a rack with
    several.

    It is one worker of the data plane.
    """

    connection: Connection
    instance: str  # tells this process from any other
    address: tuple[str, int]  # where its packets come from
    alone_since: float  # without an epoch
    lease_s: float
    rack: str = ""  # a rack's switch: its address, for people
    switches: tuple[str, ...] = ()  # a host: the instances of all that the job is spread over
    epoch: "Epoch | None" = None  # None while it holds no ranks
    ranks: dict[int, messages.RankJoin] = field(default_factory=dict)
    join_until: dict[int, float] = field(default_factory=dict)  # by rank
    prepared: bool = False
    inquiries: set[Inquiry] = field(default_factory=set)  # on behalf of it, that are under way
    refusal_count: int = 0  # of its ranks
    awaited_told: float = float("-inf")  # when it heard last that others wait for it
    gave_up: bool = False  # it asks, and doesn't read the answers

    @property
    def rank(self) -> int:
        """Returns its lowest rank, by which the workers are ordered."""
        return min(self.ranks)

    @property
    def has_started(self) -> bool:
        return self.epoch is not None and self.epoch.state in (EpochState.RUNNING, EpochState.OVER)

    def remaining(self) -> list[int]:
        """Returns its ranks that haven't left."""
        assert self.epoch is not None
        return sorted(self.ranks.keys() - self.epoch.left)

    def answer(self, message: messages.Message) -> None:
        """Sends what it has asked for, and gives it up if it doesn't read that."""
        if not self.connection.send(message):
            self.gave_up = True
            self.connection.give_up()

    def __str__(self) -> str:
        ranks = names(sorted(self.ranks))
        return f"the switch at {self.rack} ({ranks})" if self.rack else ranks


def who(rank: int, host: str, started_as: int | None) -> str:
    """Names a rank by its host and, if it was started with another one, by that."""
    started = "" if started_as in (None, rank) else f", started as rank {started_as}"
    return f"rank {rank} ({host}{started})"


def listed(hosts: Mapping[int, str]) -> str:
    """Names ranks for people as `hosts` does, by rank; or without their hosts, where that would be long."""
    ranks = sorted(hosts)
    return names(ranks) if len(ranks) > SHOWN_MAX else " and ".join(hosts[rank] for rank in ranks)


class StalledChunk(NamedTuple):
    """A host asked last about this chunk, which belongs to the sum."""

    sequence: int
    sum_name: str


@dataclass(eq=False)
class Epoch:
    """An epoch is one incarnation of a job, from its first join to its end."""

    job: "Job"
    number: int
    world_size: int
    since: float = 0.0  # it has formed since then, or run
    state: EpochState = EpochState.FORMING
    members: list[Member] = field(default_factory=list)
    uplink: ParentConnection | None = None  # to the parent, if the switch has one
    attempt: int = 0  # how often it was PREPARING
    preparing_since: float = 0.0  # the last time
    announced: messages.Prepare | None = None  # by the parent, while it counts on other ranks than those that are here
    plan: messages.Prepare | None = None  # what all levels can do, as the root says; while PREPARING and RUNNING
    slot_first: int | None = None  # while slots are reserved: from PREPARING on, until nobody can need them any more
    probe: GroupProbe | None = None  # while members are asked
    group: MulticastGroup | None = None  # where results go; None: to each member
    gone: set[int] = field(default_factory=set)  # ranks that were here before it started, and gave up or were ended
    left: set[int] = field(default_factory=set)  # of all ranks of the job
    left_since: float = 0.0  # when the first of them did
    stalled: StalledChunk | None = None
    refusal: str = ""  # why a host wasn't admitted: those who wait for it want to know

    def on(self, event: Event) -> None:
        """Goes to the state that follows."""
        assert (self.state, event) in NEXT, f"{self}: {event.value} while it is {self.state.value}"
        self.state = NEXT[self.state, event]

    def joined(self) -> dict[int, messages.RankJoin]:
        return {rank: join for member in self.members for rank, join in member.ranks.items()}

    def absent(self) -> list[int]:
        """Returns the ranks that are not here; they may be elsewhere, if there is a parent."""
        joined = self.joined()
        return [rank for rank in range(self.world_size) if rank not in joined]

    def member_of(self, rank: int) -> Member | None:
        return next((member for member in self.members if rank in member.ranks), None)

    def where(self, ranks: Collection[int]) -> str:
        """Names ranks with their machines: "rank 2 (node7, 10.0.0.4)"."""
        joined = self.joined()
        if len(ranks) > SHOWN_MAX or not all(rank in joined for rank in ranks):
            return names(sorted(ranks))
        hosts = ((rank, joined[rank]) for rank in sorted(ranks))
        return " and ".join(
            who(rank, ", ".join(filter(None, (join.host_name, join.host))), join.started_as) for rank, join in hosts
        )

    def who(self, ranks: Collection[int]) -> str:
        """Names ranks for people. In an elastic session they know a host by its address and the rank that it was
        started with: "rank 2 (10.0.0.4, started as rank 3)"."""
        joined = self.joined()
        if not all(rank in joined and joined[rank].started_as is not None for rank in ranks):
            return names(sorted(ranks))
        return listed({rank: who(rank, joined[rank].host, joined[rank].started_as) for rank in ranks})

    def workers(self) -> list[Member]:
        """Returns the members in the order of their bits in a slot's bitmap."""
        return sorted(self.members, key=lambda member: member.rank)

    def awaited(self, bitmap: int) -> tuple[list[int], str]:
        """Returns the ranks for which a chunk waits to which the workers of `bitmap` have contributed, and their names;
        no rank if it is the parent's result."""
        missing = sorted(
            rank for worker, member in enumerate(self.workers()) if not bitmap >> worker & 1 for rank in member.ranks
        )
        if missing:
            return missing, names(missing)
        return [], "the parent" if self.uplink is None else f"the switch at {self.uplink.name}"

    def has_slot(self, slot: int, plane: int) -> bool:
        """Says whether a slot is the epoch's, while it is RUNNING and slots are reserved."""
        assert self.slot_first is not None
        assert self.plan is not None
        return self.slot_first <= slot < self.slot_first + self.plan.slot_count and plane < self.plan.planes

    @property
    def own_name(self) -> str:
        """Returns the address of this switch, as members know it."""
        return self.members[0].connection.own_name if self.members else "this address"

    def __str__(self) -> str:
        return f"job {self.job.name!r}, epoch {self.number}"


@dataclass(eq=False)
class Job:
    name: str
    number: int  # on the wire; another one when it has had all epochs
    epoch: Epoch | None = None  # the one that forms or runs
    lost: set[str] = field(default_factory=set)  # instances of the hosts whose loss ended the last epoch
    began: set[str] = field(default_factory=set)  # instances of the hosts of the epoch that has begun last
    ran_until: float = float("-inf")  # when its last epoch here ended that had begun
    held: dict[int, int] = field(default_factory=dict)  # meetings (switch/meetings): their hosts, by their numbers
