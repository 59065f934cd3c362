"""Before a switch admits a rank it checks this: does it fit to the others, and to what this switch can do?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import zip_longest

import msgspec

from jax_passing import job_names
from jax_passing.config import RANKS_MAX, SHARDS_MAX
from jax_passing.errors import (
    EndedByOperatorError,
    HostLostError,
    JoinError,
    NoSlotsError,
    SwitchDrainingError,
    SwitchUnreachableError,
    TooFewHostsError,
    names,
)
from jax_passing.protocol import alike
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.packet import LANES_AT_MTU_1500
from jax_passing.settings_parser import is_power_of_two
from jax_passing.switch.jobs import quotas
from jax_passing.switch.jobs.epochs import Epoch, Member
from jax_passing.switch.jobs.slot_partition import room_of_slot

UNFIT = "unfit"  # its settings or its program don't fit to the switch, or to the others'
# Refusals are counted by these: others didn't come in time, the rank or the job was taken, somebody has as much of the
# switch as one may, and so on.
REASONS = (UNFIT, "absent", "data_plane", "draining", "key", "no_slots", "operator", "quota", "taken", "version")
_REASON_OF_KIND = {
    EndedByOperatorError.__name__: "operator",
    HostLostError.__name__: "absent",
    NoSlotsError.__name__: "no_slots",
    SwitchDrainingError.__name__: "draining",
    SwitchUnreachableError.__name__: "absent",
    TooFewHostsError.__name__: "absent",
}


class RefusalError(Exception):
    """A rank can't be admitted; the text is for its user.

    Attributes:
      reason: one of REASONS.
      kind: the name of the error that the host raises.
    """

    def __init__(self, text: str, reason: str = UNFIT, kind: str = JoinError.__name__):
        super().__init__(text)
        self.reason, self.kind = reason, kind


def reason_of(kind: str) -> str:
    """Returns for which reason a rank is refused that raises this kind of error."""
    return _REASON_OF_KIND.get(kind, UNFIT)


@dataclass(frozen=True)
class Abilities:
    """One switch can do so much for a job."""

    instance: str
    slot_count: int
    lanes_per_chunk: int
    whole_chunks: bool
    tagged: bool  # it has a key, and can tag packets
    link_gbit: float | None
    planes: int = 1  # each of them has `slot_count` slots for a job


def check_version(rack: messages.RackJoin, own_name: str) -> None:
    if rack.protocol_version != messages.PROTOCOL_VERSION:
        who = f"the switch at {rack.name}"
        raise RefusalError(
            alike.protocol_difference(own_name, messages.PROTOCOL_VERSION, who, rack.protocol_version, "that switch"),
            "version",
        )


def _check_rank(rank: int, world_size: int) -> None:
    if rank >= world_size:
        raise RefusalError(f"Rank {rank} isn't below the world size {world_size}. Ranks count from 0.")


def rank_of_host(join: messages.Join, host: str, here: Abilities) -> messages.RankJoin:
    """Returns a host's join, as its rack's switch would tell it to a parent."""
    if join.world_size > RANKS_MAX:
        raise RefusalError(f"A job has at most {RANKS_MAX} ranks, world_size is {join.world_size}.")
    _check_rank(join.rank, join.world_size)
    if job_names.SHARD_MARK in join.job:
        raise RefusalError(
            f"The job's name {join.job!r} has {job_names.SHARD_MARK!r} in it: so switches name the shards of a job. "
            "Choose another one (JAX_PASSING_JOB)."
        )
    lanes = here.lanes_per_chunk if here.whole_chunks else min(here.lanes_per_chunk, max(join.lanes, LANES_AT_MTU_1500))
    # A host of another version waits for the others as well: they are to hear of it, too.
    is_ours = join.protocol_version == messages.PROTOCOL_VERSION
    return messages.RankJoin(
        rank=join.rank,
        world_size=join.world_size,
        instance=join.instance,
        host=host,
        shards=len(join.switches),
        alike=join.alike if is_ours else {alike.PROTOCOL: str(join.protocol_version)},
        join_deadline_s=join.join_deadline_s,
        wait_s=join.join_deadline_s,
        slot_count=here.slot_count,
        lanes_per_chunk=lanes,
        whole_chunks=here.whole_chunks,
        tagged=here.tagged,
        path=(here.instance,),
        link_gbit=join.link_gbit,
        switch_link_gbit=here.link_gbit,
        started_as=join.started_as,
        host_name=join.host_name,
        host_nonce=join.host_nonce,
        planes=min(join.planes, here.planes),
        threads=join.threads,
    )


def rank_of_rack(join: messages.RankJoin, here: Abilities) -> messages.RankJoin:
    """Returns the same rank with one more switch on its way: this one."""
    _check_rank(join.rank, join.world_size)
    if not is_power_of_two(join.slot_count):
        raise RefusalError(f"{join.slot_count} slots aren't a power of two.")
    check_path(join.path, here.instance)
    lanes, whole = common_lanes((join.lanes_per_chunk, join.whole_chunks), (here.lanes_per_chunk, here.whole_chunks))
    return msgspec.structs.replace(
        join,
        slot_count=min(join.slot_count, here.slot_count),
        lanes_per_chunk=lanes,
        whole_chunks=whole,
        tagged=join.tagged and here.tagged,
        path=(*join.path, here.instance),
        switch_link_gbit=least(join.switch_link_gbit, here.link_gbit),
        planes=min(join.planes, here.planes),
    )


def check_path(path: tuple[str, ...], instance: str) -> None:
    """Checks `path`, the instances of the switches between a host and the one that has this instance. Raises
    RefusalError."""
    if instance in path:
        raise RefusalError("The switches' --parent addresses lead in a circle. The root of a tree has no --parent.")
    if len(path) >= messages.LEVELS_MAX:
        raise RefusalError(f"A tree has at most {messages.LEVELS_MAX} levels of switches.")


def least(*rates: float | None) -> float | None:
    """Returns the least of those that are known; None if none is."""
    return min((rate for rate in rates if rate), default=None)


def common_lanes(one: tuple[int, bool], other: tuple[int, bool]) -> tuple[int, bool]:
    """Returns how many lanes of a chunk suit two switches, and whether packets must have exactly this number."""
    lanes = min(one[0], other[0])
    if any(whole and lanes != its_lanes for its_lanes, whole in (one, other)):
        raise RefusalError(
            f"The switches of the tree differ in the lanes of a packet: {one[0]} and {other[0]}, and one takes no "
            "fewer. Start all with the same --lanes-per-chunk."
        )
    return lanes, one[1] or other[1]


def plan_for(epoch: Epoch, attempt: int) -> messages.Prepare:
    """Returns what the switches on the ways of all ranks can do. Raises RefusalError, for all of them."""
    if unlike := differences(epoch):
        raise RefusalError(unlike)
    joins = epoch.joined().values()
    lanes, whole = reduce(common_lanes, ((join.lanes_per_chunk, join.whole_chunks) for join in joins))
    switches = max(join.shards for join in joins)
    # A power of two as the numbers of threads, each of which has as many shards as the others.
    planes = min(1 << (SHARDS_MAX // switches).bit_length() - 1, *(join.planes for join in joins))
    return messages.Prepare(
        attempt=attempt,
        slot_count=max(1, min(join.slot_count for join in joins) // room_of_slot(lanes)),
        lanes_per_chunk=lanes,
        whole_chunks=whole,
        tagged=all(join.tagged for join in joins),
        ranks=tuple(range(epoch.world_size)),
        planes=planes,
        threads=math.gcd(min(join.threads for join in joins), planes * switches),
    )


def differences(epoch: Epoch) -> str:
    """Says in what the ranks that are here aren't alike; empty if they are.

    They are compared when all of them have come, at the root of a tree: so that all hear of it, at once and by name,
    whoever came first. Nobody loses anything by it, as the job couldn't have started earlier; and a stranger can't end
    a job's joining by this that couldn't by taking a rank.
    """
    by_rank = {rank: join.alike for rank, join in epoch.joined().items()}
    foreign: dict[str, list[int]] = {}
    for rank, facts in sorted(by_rank.items()):
        if (version := facts.get(alike.PROTOCOL, "")).isdecimal():
            foreign.setdefault(version, []).append(rank)
    if not foreign:
        return alike.differences(epoch.job.name, by_rank)
    version, ranks = next(iter(foreign.items()))
    who = f"{names(ranks)} of job {epoch.job.name!r}"
    hosts = "that host" if len(ranks) == 1 else "those hosts"
    return alike.protocol_difference(epoch.own_name, messages.PROTOCOL_VERSION, who, int(version), hosts)


def check_room(rack: Member, epochs: Sequence[Epoch]) -> None:
    """Checks that there is room for one more rank: a rack's switch has many, and each of them takes memory."""
    host = rack.connection.host
    members = [member for epoch in epochs for member in epoch.members]
    count = sum(len(member.ranks) for member in members if member.connection.host == host)
    if count >= quotas.RANKS_PER_ADDRESS:
        raise RefusalError(f"{count} ranks are here through switches at {host}, as many as may be.", "quota")


def check_fits(
    epoch: Epoch, join: messages.RankJoin, member: Member, worker_limit: int, hosts: Sequence[Member]
) -> None:
    """Checks a rank against those that are here already. `hosts`: of the job, those of other shards too."""
    job = epoch.job.name
    joined = epoch.joined()
    if epoch.world_size != join.world_size:
        raise RefusalError(
            f"Rank {join.rank} says world_size {join.world_size}, but {names(sorted(joined))} of job {job!r} said "
            f"{epoch.world_size}. All hosts of a job need the same."
        )
    for other in joined.values():
        if other.shards != join.shards:
            raise RefusalError(
                f"Rank {join.rank} lists {join.shards} switches, rank {other.rank} lists {other.shards}. "
                f"{_same_switches(job)}"
            )
        common_lanes((other.lanes_per_chunk, other.whole_chunks), (join.lanes_per_chunk, join.whole_chunks))
    for host in hosts:
        if not member.rack and host.switches != member.switches:
            pairs = enumerate(zip_longest(member.switches, host.switches))
            differ = [str(index + 1) for index, (ours, theirs) in pairs if ours != theirs]
            raise RefusalError(
                f"Ranks {join.rank} and {host.rank} differ in the switches that they list as number "
                f"{', '.join(differ)}. {_same_switches(job)}"
            )
    if join.rank in joined:
        raise RefusalError(
            f"Rank {join.rank} of job {job!r} was taken by a process at {joined[join.rank].host}. Give every host a "
            "rank of its own (JAX_PASSING_RANK), and every run a job name of its own (JAX_PASSING_JOB). If that "
            "process died without a trace, the rank is free again once its lease_s is over.",
            "taken",
        )
    if member not in epoch.members and len(epoch.members) >= worker_limit:
        raise RefusalError(
            f"This switch adds up what {worker_limit} hosts send (with strategy 'flat': devices), and job {job!r} has "
            "one more here. Spread them over racks: a switch for each, with --parent (docs/operate/switches.md).",
            "quota",
        )


def _same_switches(job: str) -> str:
    return (
        f"All hosts of job {job!r} list equally many switches, those behind one switch the same ones in the same order "
        "(JAX_PASSING_SWITCH)."
    )
