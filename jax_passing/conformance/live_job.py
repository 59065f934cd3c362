"""A job at a live switch, all of whose workers, and its parent if it has one, are sockets of this process."""

import itertools
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

import msgspec

from jax_passing.conformance.data_socket import DataSocket, GroupSocket
from jax_passing.conformance.devices import DeviceError
from jax_passing.conformance.differences import shown
from jax_passing.conformance.exchange import SLOT_COUNT
from jax_passing.conformance.joining import (
    ANSWER_S,
    JOIN_S,
    GroupAnswer,
    Joined,
    WorkerEnd,
    ask,
    decline,
    join,
    receive,
)
from jax_passing.conformance.model import Parent, State
from jax_passing.conformance.parent_role import ParentEnd, ParentRole
from jax_passing.host.control_connection import ControlConnection
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.packet import EVERY_WORKER, RESULT, Packet

ATTEMPTS = 15
# A device may drop what comes in one go: bmv2 holds some 30 frames of a port, whoever they are from.
BURST = 16
PAUSE_S = 0.002
UNREAD_S = 0.001  # a packet that has come is read by then
PACKETS_MAX = 1000  # far more than come before a fence; to hold whatever comes would take all memory
LEAVE_S = 5.0
LEASE_S_MIN = 5.0  # heartbeats go out between exchanges, which take that long if a few packets are lost
AS_PARENT = "run this on the parent's machine, in its place, with --as-parent HOST:PORT, which is the switch's --parent"
JOBS_MAX = 3  # at once: two of an exchange, and one whose worker is a stranger to them


class TooLateError(DeviceError):
    """All have heard the group, but the switch may have learned it too late."""


class LiveJob:
    """Made by joining. Raises RefusedError, DeviceError or SwitchUnreachableError.

    A switch is silent about most packets. All that it had to say to a worker has arrived once a *fence* has passed: the
    worker asks again for a complete slot, and gets that result. Packets of one path keep their order. The fence of a
    parent, or of a group, is a whole sum: up to the parent, and its result down to all.

    Attributes:
      workers: how many.
      welcome: what the switch has said to worker 0.
      offer: of a multicast group, if there was one.
      group: what hears it, if results go there.
      parent: our end of it, if there is one.
      fenced: verdicts that the switch has come to because of fences.
      repeated: how often a fence had to be repeated, which makes `fenced` uncertain.
    """

    def __init__(
        self,
        address: tuple[str, int],
        workers: int,
        parent: ParentRole | None = None,
        answer: GroupAnswer = decline,
        name: str = "",
        wait_s: float = JOIN_S,
    ):
        self.workers = workers
        self.fenced: Counter[str] = Counter()
        self.repeated = 0
        self.group: GroupSocket | None = None
        self.parent: ParentEnd | None = None
        self._workers: list[WorkerEnd] = []
        name = name or f"conformance {uuid.uuid4().hex}"
        try:
            for _ in range(workers):
                self._workers.append(WorkerEnd(address))
            self._take(join(self._workers, name, answer, wait_s))
            self.parent = parent.end_of(name) if parent is not None else None
            self._make_fences()
            if parent is None:
                self._refuse_parent()
        except (OSError, msgspec.DecodeError) as error:
            self.close()
            raise DeviceError(f"joining as {workers} workers: {error}") from error
        except BaseException:
            self.close()
            raise

    def _take(self, joined: Joined) -> None:
        self._workers, self._ranks, self.offer, self.group = joined.workers, joined.ranks, joined.offer, joined.group
        self.welcome = welcome = joined.welcome
        if welcome.multicast and self.group is None:
            raise DeviceError("it welcomes workers to a multicast group that they have declined, or don't hear")
        if self.group is not None and not welcome.multicast:
            raise TooLateError("its welcome says nothing of the multicast group that all workers have heard")
        if welcome.slot_count < 4 * SLOT_COUNT:
            raise DeviceError(
                f"it gives a job {welcome.slot_count} slots; the test needs {4 * SLOT_COUNT} for each of {JOBS_MAX} "
                f"jobs: start it with --slots-per-job {4 * SLOT_COUNT} or more"
            )
        if welcome.lease_s < LEASE_S_MIN:
            raise DeviceError(
                f"its lease is {welcome.lease_s:g} s, and workers of the test may be silent for longer: start it with "
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
            raise DeviceError(f"it has a parent: {AS_PARENT}")

    def take_slots(self) -> int | None:
        """The first of SLOT_COUNT slots that were never used; None if all were."""
        return self._free.popleft() if self._free else None

    def keep_alive(self) -> None:
        now = time.monotonic()
        if now - self._heartbeat_at > self.welcome.lease_s / messages.HEARTBEATS_PER_LEASE:
            self._heartbeat_at = now
            for worker in self._workers:
                worker.control.send(messages.Heartbeat())

    def control_of(self, rank: int) -> ControlConnection:
        return self._workers[self._ranks.index(rank)].control

    def _unused(self, numbers: messages.Welcome, sequence: int, version: int) -> Packet:
        """Of a slot that nobody uses."""
        slot = numbers.slot_first + numbers.slot_count - 1
        return replace(self._fence(slot, version, sequence), job=numbers.job_id, epoch=numbers.epoch)

    def contribute(self, numbers: messages.Welcome, sequence: int, version: int, workers: int = 1) -> list[str]:
        """The first workers do so, with these numbers. What then comes to worker 0, for people."""
        self._contribute(self._unused(numbers, sequence, version), range(workers))
        return [shown(data) for data in self.fence(0)]

    def answer(self, sequence: int, version: int) -> list[str]:
        """The parent, if there is one, sends a result for the same slot. What then comes to anybody, for people."""
        if self.parent is None:
            return []
        result = self._upwards(self._unused(self.welcome, sequence, version), self.parent.numbers)
        self.parent.udp.send(replace(result, type=RESULT, worker=EVERY_WORKER).encode())
        return [shown(data) for packets in self.fence_all() for data in packets]

    def lose_group(self) -> str:
        """A rank says that it hears the group no longer. What is wrong with the next results; empty if nothing is."""
        assert self.group is not None
        control = self._workers[-1].control
        control.send(messages.GroupLost())
        ask(control, messages.CountersQuery(), messages.Counters)  # it has dealt with what was said before
        group, self.group = self.group, None
        try:
            list(self._sum(next(self._sums)))
            with suppress(TimeoutError):
                packet = group.receive(time.monotonic() + UNREAD_S)
                return f"to the group came {shown(packet)}"
        finally:
            group.close()
        return ""

    def counters(self) -> dict[str, int]:
        """The switch's, of all its jobs."""
        return ask(self._workers[0].control, messages.CountersQuery(), messages.Counters).values

    def state(self, slot: int, version: int) -> State | str:
        """Or why the switch doesn't know it."""
        told = ask(self._workers[0].control, messages.Query(slot, version), messages.SlotState)
        if told.empty and told.trouble:
            return told.trouble
        if told.empty:
            return State()
        missing = sum(1 << self._ranks.index(rank) for rank in told.missing)
        return State(False, told.sequence, (1 << self.workers) - 1 - missing, told.complete)

    def send(self, worker: int, packet: bytes) -> None:
        self._workers[worker].udp.send(packet)

    # Fences.

    def _make_fences(self) -> None:
        """Completes several slot versions. They are used in turn: a late answer isn't taken for that to the next."""
        self._ours: set[bytes] = set()  # what comes because of fences
        *slots, last = self._fence_slots
        fences = [self._fence(slot, version, 1) for slot in slots for version in (0, 1)]
        for sent in fences:
            list(self._sum(sent))
        if self.group is not None and (too_much := self._read(worker.udp for worker in self._workers)):
            raise DeviceError(f"a result goes to the group {self.group.name}, but to a worker, too: {shown(too_much)}")
        self._turn = itertools.cycle(fences)
        self._sums = (self._fence(last, 0, sequence) for sequence in itertools.count(1))
        if self.group is not None:  # else each worker has got results before
            for worker in range(self.workers):
                self.fence(worker)

    def _fence(self, slot: int, version: int, sequence: int) -> Packet:
        welcome = self.welcome
        lanes = (1,) * (welcome.lanes_per_chunk if welcome.whole_chunks else 1)
        return Packet(
            job=welcome.job_id, epoch=welcome.epoch, slot=slot, sequence=sequence, version=version, lanes=lanes
        )

    def fence(self, worker: int) -> list[bytes]:
        """Returns all packets that the switch has sent to this worker up to now. Raises DeviceError."""
        sent = next(self._turn)
        self.fenced["resend"] += 1
        self._contribute(sent, [worker])
        return self._until(self._workers[worker].udp, self._result(sent), lambda: self._contribute(sent, [worker]))

    def fence_all(self) -> Iterator[list[bytes]]:
        """The same for the parent, if there is one, and then for the group, or each worker.

        All that the parent sent has been dealt with.
        """
        self.fenced["added"] += self.workers - 1
        self.fenced.update(["complete"] if self.parent is None else ["forwarded", "answered"])
        return self._sum(next(self._sums))

    def _contribute(self, sent: Packet, workers: Iterable[int]) -> None:
        for count, worker in enumerate(workers):
            if count and count % BURST == 0:
                time.sleep(PAUSE_S)
            self.send(worker, replace(sent, worker=worker).encode())

    def _result(self, sent: Packet) -> bytes:
        lanes = tuple(lane * self.workers for lane in sent.lanes)
        return replace(sent, type=RESULT, worker=EVERY_WORKER, lanes=lanes).encode()

    def _sum(self, sent: Packet) -> Iterator[list[bytes]]:
        """What came before this sum: to the parent, if there is one, and then to the group, or each worker."""
        everybody, result, answer = deque(range(self.workers)), self._result(sent), b""
        self._ours.add(result)

        def contribute_again() -> None:
            everybody.rotate(BURST)  # else the same ones are last, and lost, each time
            self._contribute(sent, everybody)

        self._contribute(sent, everybody)
        if self.parent is not None:
            upwards = self._upwards(sent, self.parent.numbers)
            answer = replace(upwards, type=RESULT, worker=EVERY_WORKER).encode()
            self._ours.add(upwards.encode())
            yield self._until(self.parent.udp, upwards.encode(), contribute_again)
            self.parent.udp.send(answer)

        def again() -> None:
            contribute_again()
            if self.parent is not None:
                self.parent.udp.send(answer)

        if self.group is not None:
            yield self._until(self.group, result, None)
            return
        for worker in self._workers:
            yield self._until(worker.udp, result, again)

    def _upwards(self, sent: Packet, numbers: Parent) -> Packet:
        slot = numbers.slot_first + sent.slot - self.welcome.slot_first
        lanes = tuple(lane * self.workers for lane in sent.lanes)
        return replace(sent, job=numbers.job, epoch=numbers.epoch, worker=numbers.worker, slot=slot, lanes=lanes)

    def _until(self, udp: DataSocket, wanted: bytes, ask_again: Callable[[], None] | None) -> list[bytes]:
        """What comes before `wanted`. Who asks again is answered alone, so there is no asking for a group."""
        received: list[bytes] = []
        for _ in range(ATTEMPTS):
            until = time.monotonic() + (ATTEMPTS * ANSWER_S if ask_again is None else ANSWER_S)
            with suppress(TimeoutError):
                while (packet := udp.receive(until)) != wanted:
                    if packet not in self._ours:
                        received.append(packet)
                    if len(received) > PACKETS_MAX:
                        raise DeviceError(f"it floods a worker: {len(received)} packets that must not come")
                return received
            if ask_again is None:
                raise DeviceError(
                    f"a result didn't come to the multicast group {udp.name} within {ATTEMPTS * ANSWER_S:g} s after "
                    "the last contribution"
                )
            self.repeated += 1
            ask_again()
        raise DeviceError(
            f"a worker asked {ATTEMPTS} times for a complete result, and didn't get it; without that, silence can't be "
            "told from packets under way"
        )

    def _sockets(self) -> list[DataSocket]:
        others = [self.group, self.parent.udp if self.parent is not None else None]
        return [*(worker.udp for worker in self._workers), *(udp for udp in others if udp is not None)]

    def take_stray(self) -> str:
        """What has come from elsewhere than the switch since the last call."""
        strays = [udp.stray for udp in self._sockets()]
        for udp in self._sockets():
            udp.stray = ""
        return next(filter(None, strays), "")

    def unread(self) -> bytes:
        """A packet that came since all fences were passed; empty if none did."""
        return self._read(self._sockets())

    def _read(self, sockets: Iterable[DataSocket]) -> bytes:
        for udp in sockets:
            until = time.monotonic() + UNREAD_S
            with suppress(TimeoutError):
                packet = udp.receive(until)
                while self.repeated and packet in self._ours:  # both were answered
                    packet = udp.receive(until)
                return packet
        return b""

    def close(self) -> None:
        """Leaves the job, so that the switch has its slots again."""
        until = time.monotonic() + LEAVE_S
        for worker in self._workers:
            with suppress(OSError):
                worker.control.send(messages.Leave())
        for worker in self._workers:
            with suppress(OSError, msgspec.DecodeError):
                while not isinstance(receive(worker.control, until), messages.Bye):
                    pass
            worker.close()
        if self.group is not None:
            self.group.close()


class Join(Protocol):
    """Joins the switch under test. Raises DeviceError."""

    def __call__(self, workers: int, answer: GroupAnswer = decline, name: str = "") -> LiveJob: ...
