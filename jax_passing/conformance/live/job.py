"""A job at a live switch, all of whose workers, and its parent if it has one, are sockets of this process."""

import time
import uuid
from collections import deque
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Protocol

import msgspec

from jax_passing.conformance.exchanges.differences import shown
from jax_passing.conformance.exchanges.exchange import SLOT_COUNT
from jax_passing.conformance.exchanges.model import State
from jax_passing.conformance.live.fences import UNREAD_S, Ends, Fences
from jax_passing.conformance.live.joining import JOIN_S, GroupAnswer, Joined, WorkerEnd, ask, decline, join, leave
from jax_passing.conformance.live.parent_role import ParentEnd, ParentRole
from jax_passing.conformance.switch_under_test import UntestableError
from jax_passing.host.control.control_connection import ControlConnection
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol import keys
from jax_passing.protocol.lease import HEARTBEATS_PER_LEASE
from jax_passing.protocol.packet import EVERY_WORKER, RESULT, Packet

LEASE_S_MIN = 5.0  # heartbeats go out between exchanges, which take that long if a few packets are lost
AS_PARENT = "run this on the parent's machine, in its place, with --as-parent HOST:PORT, which is the switch's --parent"
JOBS_MAX = 3  # at once: two of an exchange, and one whose worker is a stranger to them


class TooLateError(UntestableError):
    """All have heard the group, but the switch may have learned it too late."""


class LiveJob:
    """A live job is made by joining. Raises RefusedError, UntestableError or SwitchUnreachableError.

    Attributes:
      workers: how many.
      welcome: the switch's answer to worker 0.
      offer: of a multicast group, if there was one.
      ends: where its packets go out and come in.
      fences: they tell when all has come that the switch had to say.
      tags: of its packets, if they have any.
    """

    def __init__(
        self,
        address: tuple[str, int],
        workers: int,
        parent: ParentRole | None = None,
        answer: GroupAnswer = decline,
        name: str = "",
        wait_s: float = JOIN_S,
        switch_key: bytes | None = None,
    ):
        self.workers = workers
        self.ends = Ends()
        name = name or f"conformance {uuid.uuid4().hex}"
        key = None if switch_key is None else keys.job_key(switch_key, name)
        try:
            for _ in range(workers):
                self.ends.workers.append(WorkerEnd(address, name, key))
            self._take(join(self.ends.workers, name, answer, wait_s))
            if parent is not None:
                self.ends.parent = end = parent.end_of(name)
                if self.tags is not None:
                    end.udp.seal = partial(self.tags.sealed, end.results)
                    end.udp.open = partial(self.tags.opened, end.contributions)
            self.fences = Fences(self.ends, self.welcome, self._fence_slots, self.complete)
            if parent is None:
                self._refuse_parent()
        except (OSError, msgspec.DecodeError) as error:
            self.close()
            raise UntestableError(f"joining as {workers} workers: {error}") from error
        except BaseException:
            self.close()
            raise

    def _take(self, joined: Joined) -> None:
        self.ends.workers, self.ends.group = joined.workers, joined.group
        self._ranks, self.offer, self.welcome = joined.ranks, joined.offer, joined.welcome
        self.tags = joined.tags
        self._lease_s = joined.workers[0].control.hello.lease_s
        welcome = self.welcome
        if welcome.multicast and joined.group is None:
            raise UntestableError("it welcomes workers to a multicast group that they have declined, or don't hear")
        if joined.group is not None and not welcome.multicast:
            raise TooLateError("its welcome says nothing of the multicast group that all workers have heard")
        if welcome.slot_count < 4 * SLOT_COUNT:
            raise UntestableError(
                f"it gives a job {welcome.slot_count} slots; the test needs {4 * SLOT_COUNT} for each of {JOBS_MAX} "
                f"jobs: start it with --slots-per-job {4 * SLOT_COUNT} or more"
            )
        if self._lease_s < LEASE_S_MIN:
            raise UntestableError(
                f"its lease is {self._lease_s:g} s, and workers of the test may be silent for longer: start it with "
                f"--lease-s {LEASE_S_MIN:g} or more"
            )
        # Each exchange takes slots that none has used. The ends of the partition first: they are where mistakes are.
        groups = range(0, welcome.slot_count, SLOT_COUNT)
        self._free = deque(welcome.slot_first + group for group in (groups[0], groups[-1], *groups[2:-1]))
        self._fence_slots = range(welcome.slot_first + groups[1], welcome.slot_first + groups[2])
        self._heartbeat_at = time.monotonic()

    def _refuse_parent(self) -> None:
        """The fences were sums: where those go up to another machine, every case would fail."""
        if self.counters().get("forwarded", 0) > 0:
            raise UntestableError(f"it has a parent: {AS_PARENT}")

    def take_slots(self) -> int | None:
        """Returns the first of SLOT_COUNT slots that were never used; None if all were."""
        return self._free.popleft() if self._free else None

    def keep_alive(self) -> None:
        now = time.monotonic()
        if now - self._heartbeat_at > self._lease_s / HEARTBEATS_PER_LEASE:
            self._heartbeat_at = now
            for worker in self.ends.workers:
                worker.control.send(messages.Heartbeat())

    def control_of(self, rank: int) -> ControlConnection:
        return self.ends.workers[self._ranks.index(rank)].control

    def unused(self, numbers: messages.Welcome, sequence: int, version: int) -> Packet:
        """Returns a packet for a slot that nobody uses."""
        slot = numbers.slot_first + numbers.slot_count - 1
        return replace(self.fences.packet(slot, version, sequence), job=numbers.job_id, epoch=numbers.epoch)

    def contribute(self, numbers: messages.Welcome, sequence: int, version: int, workers: int = 1) -> list[str]:
        """Has the first workers contribute, with these numbers. Describes the packets that then come to worker 0."""
        sent = self.unused(numbers, sequence, version)
        self.fences.contribute(sent, range(workers))
        if workers == self.workers:
            self.complete(sent.encode())
        return [shown(data) for data in self.fences.at_worker(0)]

    def answer(self, sequence: int, version: int) -> list[str]:
        """Has the parent, if there is one, send a result for the same slot. Describes the packets that then come to
        anybody."""
        parent = self.ends.parent
        if parent is None:
            return []
        parent.udp.send(self.parents_result(parent, sequence, version).encode())
        return self.everything()

    def parents_result(self, parent: ParentEnd, sequence: int, version: int) -> Packet:
        """Returns the parent's result for the same slot, when all workers contribute to it."""
        up = self.fences.upwards(self.unused(self.welcome, sequence, version), parent.numbers)
        return replace(up, type=RESULT, worker=EVERY_WORKER)

    def everything(self) -> list[str]:
        """Describes what has come to anybody."""
        return [shown(data) for packets in self.fences.everywhere() for data in packets]

    def lose_group(self) -> str:
        """Has a rank say that it no longer hears the group. Says what is wrong with the next results, or nothing."""
        group = self.ends.group
        assert group is not None
        control = self.ends.workers[-1].control
        control.send(messages.GroupLost())
        ask(control, messages.CountersQuery(), messages.Counters)  # it has dealt with what was said before
        self.ends.group = None
        try:
            list(self.fences.sum())
            with suppress(TimeoutError):
                packet = group.receive(time.monotonic() + UNREAD_S)
                return f"to the group came {shown(packet)}"
        finally:
            group.close()
        return ""

    def counters(self) -> dict[str, int]:
        """Asks the switch for its counters, of all its jobs."""
        return ask(self.ends.workers[0].control, messages.CountersQuery(), messages.Counters).values

    def state(self, slot: int, version: int) -> State | str:
        """Asks the switch for a slot version's state. Returns a text if the switch doesn't know it."""
        told = ask(self.ends.workers[0].control, messages.Query(slot, version), messages.SlotState)
        if told.empty and told.trouble:
            return told.trouble
        if told.empty:
            return State()
        missing = sum(1 << self._ranks.index(rank) for rank in told.missing)
        return State(False, told.sequence, (1 << self.workers) - 1 - missing, told.complete)

    def send(self, worker: int, packet: bytes) -> None:
        self.ends.workers[worker].udp.send(packet)

    def complete(self, packet: bytes) -> None:
        """Notes that with this contribution, or parent's result, the switch has made a packet."""
        if self.tags is not None:
            self.tags.complete(packet)

    def close(self) -> None:
        """Leaves the job, so that the switch has its slots again."""
        leave(self.ends.workers)
        for worker in self.ends.workers:
            worker.close()
        if self.ends.group is not None:
            self.ends.group.close()


class Join(Protocol):
    """Joins the switch under test. Raises UntestableError."""

    def __call__(self, workers: int, answer: GroupAnswer = decline, name: str = "") -> LiveJob: ...
