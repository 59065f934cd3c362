"""Judges the sessions of a cluster by rules that hold whatever happens. packets.h judges sums, with the packets."""

from collections.abc import Iterator
from dataclasses import dataclass

from jax_passing import errors
from jax_passing.switch.jobs.waits import PARENT_GRACE_S
from simulation.plan import STRANGERS, Plan
from simulation.switches import LEASE_S

JOIN_DEADLINE_S = 4.0
DEADLINE_S = 3.0
KEPT_OUT = ("AuthenticationError", "JoinError", "SwitchUnreachableError", "crashed")
NOTICED_S = 0.5  # for messages through a tree, and for those who look now and then


@dataclass(kw_only=True)
class SessionRecord:
    """The judge is told this of a session that has ended.

    Attributes:
      kind: of error; or "Bye", "crashed", or "left alone" by the others, for whom it has waited long enough.
      ranks: that the error names.
      incarnation: whose sums it took part in; None before it was welcomed.
      left_s: when it had no more sums.
      begun_s: when it began its last execution.
    """

    host: int
    rank: int
    does: str
    began_s: float
    kind: str = ""
    text: str = ""
    ranks: tuple[int, ...] = ()
    incarnation: int | None = None
    welcomed_s: float | None = None
    left_s: float | None = None
    begun_s: float = 0.0
    ended_s: float = 0.0
    is_silent: bool = False  # it crashed, and nobody was told

    def __str__(self) -> str:
        return (
            f"host {self.host}, rank {self.rank}, {self.began_s:.3f} to {self.ended_s:.3f} s: {self.kind} {self.text}"
        )


def faults(plan: Plan, sessions: list[SessionRecord]) -> Iterator[str]:
    """Yields each rule that a session broke."""
    for one in sessions:
        if one.kind not in ("Bye", "crashed", "left alone") and not errors.is_kind(one.kind):
            yield f"no error of ours: {one}"
        if one.kind == "ProtocolError":
            yield f"a defect of ours: {one}"
        is_stranger = one.does in STRANGERS
        kept_out = (*KEPT_OUT, "SwitchLostError") if plan.stuck or not plan.only_hosts_crash else KEPT_OUT
        if is_stranger and (one.welcomed_s is not None or one.kind not in kept_out):
            yield f"a stranger wasn't kept out: {one}"
        if one.kind == "AuthenticationError" and plan.has_one_key and not is_stranger:
            yield f"it has the key: {one}"
        if one.kind == "WrongSumError" and plan.is_safe:
            yield f"nobody has changed a packet: {one}"
        if plan.is_gentle and one.kind != "Bye" and not is_stranger:
            yield f"nothing has failed, and yet: {one}"
        if plan.runs_on and one.welcomed_s is not None and one.kind not in ("Bye", "left alone"):
            yield f"at worst all stood still, and yet: {one}"
    if plan.only_hosts_fail:
        yield from _faults_beside_hosts(sessions)
        yield from _begun_with_the_dead(plan, sessions)


def _faults_beside_hosts(sessions: list[SessionRecord]) -> Iterator[str]:
    """Where switches and the network are sound."""
    # A process that begins anew may come before the news of why its last session ended.
    suspects = {one.rank for one in sessions if one.kind == "crashed" or one.does}
    for one in sessions:
        if not one.does and one.kind in ("SwitchLostError", "SwitchUnreachableError"):
            yield f"no switch has failed: {one}"
        if one.kind == "HostLostError" and not suspects.issuperset(one.ranks) and "joined anew" not in one.text:
            yield f"these ranks have not failed: {one.ranks}: {one}"
        joined_s = one.ended_s if one.welcomed_s is None else one.welcomed_s
        if joined_s > one.began_s + JOIN_DEADLINE_S + PARENT_GRACE_S + NOTICED_S:
            yield f"it waited too long for others: {one}"
        if one.kind == "crashed" and one.incarnation is not None and one.left_s is None:
            yield from _told_late(one, sessions)
        if one.kind == "HostLostError" and one.incarnation is not None:
            yield from _left_behind_late(one, sessions)


def _begun_with_the_dead(plan: Plan, sessions: list[SessionRecord]) -> Iterator[str]:
    """A rank whose machine died while it waited is one of the job's for no longer than a lease."""
    job_of = {host.number: host.job for host in plan.hosts}
    for dead in sessions:
        if not dead.is_silent or dead.welcomed_s is not None:
            continue
        for one in sessions:
            is_late = one.welcomed_s is not None and one.welcomed_s > dead.ended_s + LEASE_S + NOTICED_S
            if not is_late or job_of[one.host] != job_of[dead.host]:
                continue
            ranks = {other.rank for other in sessions if other.incarnation == one.incarnation}
            others = (other for other in sessions if other is not dead and job_of[other.host] == job_of[dead.host])
            came = any(other.rank == dead.rank and other.ended_s > dead.ended_s for other in others)
            if dead.rank not in ranks and not came:
                yield f"it began with rank {dead.rank}, which had died at {dead.ended_s:.3f} s: {one}"


def _left_behind_late(lost: SessionRecord, sessions: list[SessionRecord]) -> Iterator[str]:
    for one in sessions:
        if one.incarnation != lost.incarnation or one.left_s is None or (one.rank,) != lost.ranks:
            continue
        if lost.ended_s > max(one.left_s, lost.begun_s) + NOTICED_S:
            yield f"it hears too late that rank {one.rank} left at {one.left_s:.3f} s: {lost}"


def _told_late(crashed: SessionRecord, sessions: list[SessionRecord]) -> Iterator[str]:
    until_s = crashed.ended_s + NOTICED_S + (LEASE_S if crashed.is_silent else 0.0)
    for one in sessions:
        if one.incarnation == crashed.incarnation and one.ended_s > until_s and not one.does:
            yield f"it hears too late that rank {crashed.rank} crashed at {crashed.ended_s:.3f} s: {one}"
