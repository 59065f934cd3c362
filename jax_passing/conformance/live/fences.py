"""The ends of a job's packets on this machine, and fences: when has all that the switch had to say arrived?"""

import itertools
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from jax_passing.conformance.exchanges.differences import shown
from jax_passing.conformance.exchanges.model import Parent
from jax_passing.conformance.live.data_socket import DataSocket, GroupSocket
from jax_passing.conformance.live.joining import ANSWER_S, WorkerEnd
from jax_passing.conformance.live.parent_role import ParentEnd
from jax_passing.conformance.switch_under_test import UntestableError
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.packet import EVERY_WORKER, RESULT, Packet

ATTEMPTS = 15
# A device may drop packets that come in one go: bmv2 holds 32 frames of a port, whoever they are from. So many packets
# leave room for a fence's, and for ARP and IPv6.
BURST = 16
PAUSE_S = 0.002
UNREAD_S = 0.001  # a packet that has come is read by then
PACKETS_MAX = 1000  # far more than come before a fence; to hold whatever comes would take all memory


@dataclass
class Ends:
    """These sockets are where packets of the switch end.

    Attributes:
      workers: by their numbers at the switch.
      group: the socket that hears the multicast group, if results go there.
      parent: our end of the way up, if the switch has a parent.
    """

    workers: list[WorkerEnd] = field(default_factory=list)
    group: GroupSocket | None = None
    parent: ParentEnd | None = None

    def sockets(self) -> list[DataSocket]:
        others = [self.group, self.parent.udp if self.parent is not None else None]
        return [*(worker.udp for worker in self.workers), *(udp for udp in others if udp is not None)]

    def take_stray(self) -> str:
        """Returns what has come from elsewhere than the switch since the last call."""
        strays = [udp.stray for udp in self.sockets()]
        for udp in self.sockets():
            udp.stray = ""
        return next(filter(None, strays), "")


class Fences:
    """Fences are made by completing several slot versions of `slots`. Raises UntestableError.

    A switch is silent about most packets. All that it had to say to a worker has arrived once a *fence* has passed: the
    worker asks again for a complete slot, and gets that result. Packets of one path keep their order. The fence of a
    parent, or of a group, is a whole sum: up to the parent, and its result down to all.

    Attributes:
      verdicts: that the switch has come to because of fences, and how often.
      repeated: how often a fence had to be repeated, which makes `verdicts` uncertain.
    """

    def __init__(self, ends: Ends, welcome: messages.Welcome, slots: range, on_complete: Callable[[bytes], None]):
        """`on_complete` hears of contributions with which the switch has made a result."""
        self._on_complete = on_complete
        self.verdicts: Counter[str] = Counter()
        self.repeated = 0
        self._ends = ends
        self._welcome = welcome
        self._ours: set[bytes] = set()  # packets that fences cause
        *asked, last = slots
        # They are used in turn: a late answer isn't taken for that to the next.
        complete = [self.packet(slot, version, 1) for slot in asked for version in (0, 1)]
        for sent in complete:
            list(self._sum(sent))
        if ends.group is not None and (too_much := self._read(worker.udp for worker in ends.workers)):
            raise UntestableError(
                f"a result goes to the group {ends.group.name}, but to a worker, too: {shown(too_much)}"
            )
        self._turn = itertools.cycle(complete)
        self._sums = (self.packet(last, 0, sequence) for sequence in itertools.count(1))
        if ends.group is not None:  # else each worker has got results before
            for worker in range(len(ends.workers)):
                self.at_worker(worker)

    def at_worker(self, worker: int) -> list[bytes]:
        """Returns all packets that the switch has sent to this worker up to now. Raises UntestableError."""
        sent = next(self._turn)
        self.verdicts["resend"] += 1

        def contribute() -> None:
            self.contribute(sent, [worker])

        contribute()
        return self._until(self._ends.workers[worker].udp, self.result(sent), contribute)

    def everywhere(self) -> Iterator[list[bytes]]:
        """The same for the parent, if there is one, and then for the group, or each worker.

        All that the parent sent has been dealt with.
        """
        self.verdicts["added"] += len(self._ends.workers) - 1
        self.verdicts.update(["complete"] if self._ends.parent is None else ["forwarded", "answered"])
        return self.sum()

    def sum(self) -> Iterator[list[bytes]]:
        """Makes one sum of all workers. Yields what came before it: to the parent, if there is one, and then to the
        group, or to each worker."""
        return self._sum(next(self._sums))

    def unread(self) -> bytes:
        """Returns a packet that came since all fences were passed; empty if none did."""
        return self._read(self._ends.sockets())

    # Packets.

    def packet(self, slot: int, version: int, sequence: int) -> Packet:
        """Makes a contribution of one in each lane."""
        welcome = self._welcome
        lanes = (1,) * (welcome.lanes_per_chunk if welcome.whole_chunks else 1)
        return Packet(
            job=welcome.job_id, epoch=welcome.epoch, slot=slot, sequence=sequence, version=version, lanes=lanes
        )

    def contribute(self, sent: Packet, workers: Iterable[int]) -> None:
        for count, worker in enumerate(workers):
            if count and count % BURST == 0:
                time.sleep(PAUSE_S)
            self._ends.workers[worker].udp.send(replace(sent, worker=worker).encode())

    def upwards(self, sent: Packet, numbers: Parent) -> Packet:
        """Returns the packet that the switch then sends to its parent, where the job has these numbers."""
        slot = numbers.slot_first + sent.slot - self._welcome.slot_first
        return replace(
            sent, job=numbers.job, epoch=numbers.epoch, worker=numbers.worker, slot=slot, lanes=self._summed(sent)
        )

    def result(self, sent: Packet) -> bytes:
        return replace(sent, type=RESULT, worker=EVERY_WORKER, lanes=self._summed(sent)).encode()

    def _summed(self, sent: Packet) -> tuple[int, ...]:
        return tuple(lane * len(self._ends.workers) for lane in sent.lanes)

    def _sum(self, sent: Packet) -> Iterator[list[bytes]]:
        ends, result, answer = self._ends, self.result(sent), b""
        everybody = deque(range(len(ends.workers)))
        self._ours.add(result)

        def contribute_again() -> None:
            everybody.rotate(BURST)  # else the same ones are last, and lost, each time
            self.contribute(sent, everybody)

        self.contribute(sent, everybody)
        self._on_complete(sent.encode())
        if ends.parent is not None:
            upwards = self.upwards(sent, ends.parent.numbers)
            answer = replace(upwards, type=RESULT, worker=EVERY_WORKER).encode()
            self._ours.add(upwards.encode())
            yield self._until(ends.parent.udp, upwards.encode(), contribute_again)
            ends.parent.udp.send(answer)

        def again() -> None:
            contribute_again()
            if ends.parent is not None:
                ends.parent.udp.send(answer)

        if ends.group is not None:
            yield self._until(ends.group, result, None)
            return
        for worker in ends.workers:
            yield self._until(worker.udp, result, again)

    def _until(self, udp: DataSocket, wanted: bytes, ask_again: Callable[[], None] | None) -> list[bytes]:
        """Returns what comes before `wanted`. A resend is answered to its sender only, so none is sent for a group."""
        received: list[bytes] = []
        for _ in range(ATTEMPTS):
            until = time.monotonic() + (ATTEMPTS * ANSWER_S if ask_again is None else ANSWER_S)
            with suppress(TimeoutError):
                while (packet := udp.receive(until)) != wanted:
                    if packet not in self._ours:
                        received.append(packet)
                    if len(received) > PACKETS_MAX:
                        raise UntestableError(f"it floods a worker: {len(received)} packets that must not come")
                return received
            if ask_again is None:
                raise UntestableError(
                    f"a result didn't come to the multicast group {udp.name} within {ATTEMPTS * ANSWER_S:g} s after "
                    "the last contribution"
                )
            self.repeated += 1
            ask_again()
        raise UntestableError(
            f"a worker asked {ATTEMPTS} times for a complete result, and didn't get it; without that, silence can't be "
            "told from packets under way"
        )

    def _read(self, sockets: Iterable[DataSocket]) -> bytes:
        for udp in sockets:
            until = time.monotonic() + UNREAD_S
            with suppress(TimeoutError):
                packet = udp.receive(until)
                while self.repeated and packet in self._ours:  # both were answered
                    packet = udp.receive(until)
                return packet
        return b""
