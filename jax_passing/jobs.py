"""The jobs of a switch: who may join, when an epoch starts, how it ends. No I/O but what members are sent."""

import enum
import logging
import secrets
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from jax_passing import control_messages as messages
from jax_passing.data_plane import DataPlane, Group, JobSlots
from jax_passing.errors import HostLostError, JoinError, names
from jax_passing.group_probe import GroupProbe, Step
from jax_passing.slot_partition import SlotPartition

log = logging.getLogger("jax_passing.switch")

JOBS_MAX = 4096  # remembered ones, for their epochs
ID_MAX = 65535  # jobs and epochs are 16 bits on the wire; 0 is no job and no epoch


class RefusalError(Exception):
    """A host can't be admitted; the text is for its user."""


class Connection(Protocol):
    """To one host."""

    @property
    def host(self) -> str:
        """Its IP address."""

    @property
    def own_host(self) -> str:
        """Ours, as that host knows it."""

    def send(self, message: messages.Message) -> bool:
        """Never waits. False if the host has stopped reading."""

    def close(self) -> None:
        """After what was sent."""


@dataclass(eq=False)
class Member:
    """A connection that has joined an epoch."""

    join: messages.Join
    connection: Connection
    join_until: float
    heard: float  # when it sent something last
    left: bool = False

    @property
    def rank(self) -> int:
        return self.join.rank


class State(enum.Enum):
    FORMING = enum.auto()
    PROBING = enum.auto()  # all ranks are here; do they hear multicast?
    RUNNING = enum.auto()
    OVER = enum.auto()


@dataclass(eq=False)
class Epoch:
    """One incarnation of a job, from its first join to its end."""

    job: "Job"
    number: int
    world_size: int
    state: State = State.FORMING
    members: dict[int, Member] = field(default_factory=dict)
    slot_first: int = 0
    probe: GroupProbe | None = None  # while PROBING
    multicast: bool = False  # RUNNING: results go to a group
    refusal: str = ""  # why a host wasn't admitted: those who wait for it want to know

    def absent(self) -> list[int]:
        return [rank for rank in range(self.world_size) if rank not in self.members]

    def left(self) -> tuple[int, ...]:
        return tuple(sorted(member.rank for member in self.members.values() if member.left))

    def __str__(self) -> str:
        return f"job {self.job.name!r}, epoch {self.number}"


@dataclass(eq=False)
class Job:
    name: str
    number: int  # on the wire
    epoch_last: int = 0
    epoch: Epoch | None = None  # the one that forms or runs


def _strategy(join: messages.Join) -> str:
    return f"strategy {join.strategy!r}" + (f" with {join.devices} devices a host" if join.devices else "")


def _switches_differ(join: messages.Join, other: messages.Join) -> str:
    ours, theirs = join.switches, other.switches
    if len(ours) != len(theirs):
        what = f"Rank {join.rank} lists {len(ours)} switches, rank {other.rank} lists {len(theirs)}"
    else:
        differ = [str(index + 1) for index, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]]
        what = f"Ranks {join.rank} and {other.rank} differ in the switches that they list as number {', '.join(differ)}"
    return f"{what}. All hosts of job {join.job!r} need the same switches in the same order (JAX_PASSING_SWITCH)."


class JobTable:
    """All jobs, and the slots that they hold."""

    def __init__(self, data_plane: DataPlane, *, lease_s: float, slots_per_job: int, link_gbit: float | None = None):
        self._data_plane = data_plane
        self._lease_s = lease_s
        self._slots_per_job = slots_per_job
        self._link_gbit = link_gbit
        self._partition = SlotPartition(data_plane.slot_total)
        self._jobs: dict[str, Job] = {}
        self._job_number_last = 0
        self.counts: Counter[str] = Counter()

    def epochs(self) -> list[Epoch]:
        """Those that form or run."""
        return [job.epoch for job in self._jobs.values() if job.epoch is not None]

    # Admission.

    def _job(self, name: str) -> Job:
        job = self._jobs.pop(name, None)
        if job is None:
            if len(self._jobs) >= JOBS_MAX:
                idle = next((known for known in self._jobs.values() if known.epoch is None), None)
                if idle is None:
                    raise RefusalError(f"{JOBS_MAX} jobs run on this switch already.")
                del self._jobs[idle.name]
            taken = {known.number for known in self._jobs.values()}
            while (number := self._job_number_last % ID_MAX + 1) in taken:
                self._job_number_last = number
            self._job_number_last = number
            job = Job(name, number)
        self._jobs[name] = job  # last in the dict: used most recently
        return job

    def _check_join(self, join: messages.Join) -> None:
        if join.protocol_version != messages.PROTOCOL_VERSION:
            raise RefusalError(
                f"The switch speaks protocol version {messages.PROTOCOL_VERSION}, this host {join.protocol_version}. "
                "Install the same version of jax_passing everywhere."
            )
        if join.world_size > (limit := self._data_plane.worker_limit):
            raise RefusalError(f"This switch sums over at most {limit} ranks, world_size is {join.world_size}.")
        if join.rank >= join.world_size:
            raise RefusalError(f"Rank {join.rank} isn't below the world size {join.world_size}. Ranks count from 0.")

    def _epoch_to_join(self, job: Job, join: messages.Join) -> Epoch:
        epoch = job.epoch
        if epoch is not None and (old := epoch.members.get(join.rank)) and old.join.instance == join.instance:
            # The same process again: it gave the old connection up, though that news may not have arrived.
            self.lose(epoch, old, "joined anew")
            epoch = job.epoch
        if epoch is None:
            job.epoch_last = job.epoch_last % ID_MAX + 1
            epoch = job.epoch = Epoch(job, job.epoch_last, join.world_size)
        if epoch.state is State.RUNNING:
            raise RefusalError(
                f"Job {job.name!r} is running (epoch {epoch.number}) and rank {join.rank} is in it. Stop that run, or "
                f"choose another job name (JAX_PASSING_JOB). A host that died without a trace is noticed after "
                f"{self._lease_s:g} s; then the job can be joined again."
            )
        if epoch.world_size != join.world_size:
            raise RefusalError(
                f"Rank {join.rank} says world_size {join.world_size}, but {names(sorted(epoch.members))} of job "
                f"{job.name!r} said {epoch.world_size}. All hosts of a job need the same."
            )
        for other in epoch.members.values():
            if (other.join.strategy, other.join.devices) != (join.strategy, join.devices):
                raise RefusalError(
                    f"Rank {join.rank} of job {job.name!r} says {_strategy(join)}, rank {other.rank} said "
                    f"{_strategy(other.join)}. All hosts of a job need the same (JAX_PASSING_STRATEGY)."
                )
            if other.join.switches != join.switches:
                raise RefusalError(_switches_differ(join, other.join))
        if join.rank in epoch.members:
            host = epoch.members[join.rank].connection.host
            raise RefusalError(
                f"Rank {join.rank} of job {job.name!r} was taken by a process at {host}. Give every host a rank of "
                "its own (JAX_PASSING_RANK), and every run a job name of its own (JAX_PASSING_JOB)."
            )
        return epoch

    def admit(self, join: messages.Join, connection: Connection) -> tuple[Epoch, Member]:
        """Raises RefusalError. The last rank to join starts the epoch."""
        try:
            self._check_join(join)
            epoch = self._epoch_to_join(self._job(join.job), join)
        except RefusalError as refusal:
            self.counts["joins_refused"] += 1
            job = self._jobs.get(join.job)
            if job is not None and job.epoch is not None:
                job.epoch.refusal = str(refusal)
            raise
        now = time.monotonic()
        member = Member(join, connection, join_until=now + join.join_deadline_s, heard=now)
        epoch.members[join.rank] = member
        log.info("%s: rank %d of %d joined", epoch, join.rank, join.world_size)
        if not epoch.absent():
            self._offer_group(epoch)
        return epoch, member

    # Multicast or not.

    def _offer_group(self, epoch: Epoch) -> None:
        """Asks all ranks whether they hear a group, if the data plane has one and there is anything to gain."""
        own = {member.connection.own_host for member in epoch.members.values()}
        group = self._data_plane.group(epoch.job.number, own.pop()) if len(own) == 1 and epoch.world_size > 1 else None
        if group is None:
            self._start(epoch, None)
            return
        nonce = secrets.randbits(32)
        epoch.state = State.PROBING
        epoch.probe = GroupProbe(group, nonce, epoch.world_size, time.monotonic())
        offer = messages.GroupOffer(group.address, group.port, epoch.job.number, epoch.number, nonce)
        for member in epoch.members.values():
            member.connection.send(offer)

    def group_answer(self, epoch: Epoch, member: Member, answer: messages.GroupReady | messages.GroupHeard) -> None:
        probe = epoch.probe
        if probe is None or probe.nonce != answer.nonce:
            return  # about an earlier attempt
        if isinstance(answer, messages.GroupReady):
            probe.ready(member.rank, answer.problem)
        else:
            probe.heard(member.rank)
        self.advance_probe(epoch, time.monotonic())

    def advance_probe(self, epoch: Epoch, now: float) -> None:
        """Does what is due. Call it every few milliseconds while the epoch is PROBING."""
        probe = epoch.probe
        if probe is None:
            return
        match probe.step(now):
            case Step.SEND:
                try:
                    self._data_plane.probe(probe.group, epoch.job.number, epoch.number, probe.nonce)
                except Exception as error:  # whatever the device's driver raises
                    probe.fail(f"the data plane can't send to {probe.group.address} ({error})")
            case Step.HEARD:
                self._start(epoch, probe.group)
            case Step.NOT_HEARD:
                log.info("%s: each rank is sent its own results: %s", epoch, probe.reason)
                self._start(epoch, None)

    def group_lost(self, epoch: Epoch, member: Member) -> None:
        """For all ranks: one that asks again for each result slows all of them down."""
        if not epoch.multicast:
            return
        log.warning(
            "%s: rank %d no longer hears the multicast group: each rank is sent its own results from now on. Do the "
            "network's switches that snoop IGMP have a querier?",
            epoch,
            member.rank,
        )
        self.counts["groups_lost"] += 1
        epoch.multicast = False
        try:
            self._data_plane.stop_multicast(epoch.job.number)
        except Exception:  # whatever the device's driver raises; that rank still gets its results by asking again
            log.exception("%s: the data plane didn't stop multicast", epoch)

    def _start(self, epoch: Epoch, group: Group | None) -> None:
        epoch.probe = None
        slot_first = self._partition.allocate(self._slots_per_job)
        if slot_first is None:
            self._refuse(
                epoch,
                f"The switch has no {self._slots_per_job} free slots of its {self._data_plane.slot_total}: too many "
                "jobs run at once. Wait for one to end, or give the switch more slot_total or less slots_per_job.",
            )
            return
        members = [epoch.members[rank] for rank in range(epoch.world_size)]
        addresses = tuple((member.connection.host, member.join.udp_port) for member in members)
        try:
            self._data_plane.add_job(
                JobSlots(epoch.job.number, epoch.number, slot_first, self._slots_per_job, addresses, group)
            )
        except Exception as error:  # whatever the device's driver raises
            log.exception("%s: the data plane refused it", epoch)
            self._partition.free(slot_first)
            self._refuse(epoch, f"The switch's data plane refused the job ({error}). Look at the switch's log.")
            return
        epoch.state, epoch.slot_first, epoch.multicast = State.RUNNING, slot_first, group is not None
        welcome = messages.Welcome(
            job_id=epoch.job.number,
            epoch=epoch.number,
            slot_first=slot_first,
            slot_count=self._slots_per_job,
            worker=0,
            lanes_per_chunk=self._data_plane.lanes_per_chunk,
            lease_s=self._lease_s,
            whole_chunks=self._data_plane.whole_chunks,
            worker_limit=self._data_plane.worker_limit,
            multicast=epoch.multicast,
            link_gbit=min((member.join.link_gbit for member in members if member.join.link_gbit), default=None),
            switch_link_gbit=self._link_gbit,
        )
        now = time.monotonic()
        for worker, member in enumerate(members):
            member.heard = now
            member.connection.send(msgspec.structs.replace(welcome, worker=worker))
        self.counts["epochs_started"] += 1
        way = f"multicast to {group.address}" if group else "unicast"
        log.info("%s: started with %d ranks, slots from %d, results by %s", epoch, epoch.world_size, slot_first, way)

    def _refuse(self, epoch: Epoch, message: str) -> None:
        """Sends all waiting hosts away."""
        for member in epoch.members.values():
            member.connection.send(messages.Refused(JoinError.__name__, message))
            member.connection.close()
        self.end(epoch)

    # How a member, or an epoch, ends.

    def end(self, epoch: Epoch) -> None:
        """Frees the slots."""
        was, epoch.state, epoch.probe = epoch.state, State.OVER, None
        if epoch.job.epoch is epoch:
            epoch.job.epoch = None
        if was is State.RUNNING:
            try:
                self._data_plane.remove_job(epoch.job.number)
            except Exception:  # whatever the device's driver raises; other jobs go on
                log.exception("%s: the data plane didn't remove it", epoch)
            self._partition.free(epoch.slot_first)

    def fail(self, epoch: Epoch, failed: messages.Failed, *, reporter: Member | None = None) -> None:
        """Ends the epoch and tells all members but the one that said so."""
        if epoch.state is State.OVER:
            return
        log.warning("%s failed: %s: %s", epoch, failed.kind, failed.message)
        self.counts["epochs_failed"] += 1
        self.end(epoch)
        for member in epoch.members.values():
            if member is not reporter:
                member.connection.send(failed)
            member.connection.close()  # sends what is buffered first

    def lose(self, epoch: Epoch, member: Member, reason: str) -> None:
        """A member is gone: that ends a running epoch, and frees its place in one that forms."""
        if epoch.state in (State.FORMING, State.PROBING):
            log.info("%s: rank %d gave up waiting", epoch, member.rank)
            epoch.state, epoch.probe = State.FORMING, None
            if epoch.members.get(member.rank) is member:
                del epoch.members[member.rank]
            if not epoch.members:
                self.end(epoch)
            member.connection.close()
        elif epoch.state is State.RUNNING and not member.left:
            self.fail(
                epoch,
                messages.Failed(
                    HostLostError.__name__,
                    f"Rank {member.rank} {reason} ({epoch}, world size {epoch.world_size}). It was killed, crashed, or "
                    "lost its network: look at its log. Then call jax_passing.init again on every host.",
                    (member.rank,),
                ),
            )

    def give_up(self, epoch: Epoch, member: Member) -> None:
        """The member has waited long enough for the others."""
        absent = epoch.absent()
        advice = (
            f"One host was refused: {epoch.refusal}"
            if epoch.refusal
            else "Are those hosts running, with the same job name and switch? Raise join_deadline_s if they start "
            "later."
        )
        member.connection.send(
            messages.Refused(
                JoinError.__name__,
                f"{names(absent).capitalize()} of job {epoch.job.name!r} (world size {epoch.world_size}) didn't join "
                f"within the {member.join.join_deadline_s:.1f} s that rank {member.rank} waited. {advice}",
            )
        )
        self.lose(epoch, member, "gave up")

    def leave(self, epoch: Epoch, member: Member) -> None:
        """A barrier: the epoch ends well when all have left."""
        member.left = True
        log.info("%s: rank %d left", epoch, member.rank)
        if len(epoch.left()) == epoch.world_size:
            self.end(epoch)
            for other in epoch.members.values():
                other.connection.send(messages.Bye())
                other.connection.close()

    def slot_state(self, epoch: Epoch, slot: int | None, version: int) -> messages.SlotState:
        """Raises ValueError if the slot isn't the job's."""
        if slot is None:
            return messages.SlotState(left=epoch.left())
        if not epoch.slot_first <= slot < epoch.slot_first + self._slots_per_job:
            raise ValueError(f"slot {slot} isn't the job's")
        held = self._data_plane.slot_version(slot, version)
        return messages.SlotState(
            left=epoch.left(),
            empty=held.empty,
            sequence=held.sequence,
            complete=held.complete,
            missing=tuple(rank for rank in range(epoch.world_size) if held.empty or not held.bitmap >> rank & 1),
        )
