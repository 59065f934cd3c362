"""A packet exchange has the packets sent, and the right answers. It is data, whichever switch it is played on."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice

from jax_passing.conformance.exchanges.model import Job, Limits, Parent, State, Switch
from jax_passing.protocol.packet import BARE, CONTRIBUTION, HEADER, LANES_MAX, NO_RESULT

# The numbers that packets of an exchange carry: job, epoch and first slot. A live switch gives out others: live/job.py.
NUMBERS = {"A": (3, 11, 8), "B": (4, 12, 12)}
SLOT_COUNT = 4  # of each job
# Its parent's numbers are another switch's: job 4 there is not job B here.
PARENTS = {"A": Parent(job=4, epoch=2, slot_first=32, worker=5, address="P")}
STRANGER = "X"  # an address with which nobody has joined A or B


def jobs_of(text: str) -> tuple[Job, ...]:
    """Reads jobs with their workers: "A2 B3" has two jobs. Worker 1 of job A sends from address "A1".

    "A2^" has a parent. The workers of "A2*" hear results from a group, whose address is "A*".
    """
    jobs = []
    for name, count, marks in re.findall(r"([AB])(\d+)([*^]*)", text):
        number, epoch, slot_first = NUMBERS[name]
        workers = tuple(f"{name}{worker}" for worker in range(int(count)))
        parent, group = PARENTS[name] if "^" in marks else None, f"{name}*" if "*" in marks else None
        jobs.append(Job(number, epoch, slot_first, SLOT_COUNT, workers, parent, group))
    return tuple(jobs)


@dataclass(frozen=True)
class Step:
    """`packet` is sent from address `source`; the switch answers `out` to each address of `to`, and `bare`, which has
    no lanes, to each of `bare_to`."""

    source: str
    packet: bytes
    verdict: str
    to: tuple[str, ...] = ()
    out: bytes = b""
    bare_to: tuple[str, ...] = ()
    bare: bytes = b""

    def answer_to(self, address: str) -> tuple[tuple[str, ...], bytes] | None:
        """Returns the answer that comes to the address, and all to which it goes; None if none does."""
        for to, out in ((self.to, self.out), (self.bare_to, self.bare)):
            if address in to:
                return to, out
        return None


@dataclass(frozen=True)
class Exchange:
    """Steps on a switch that has just these jobs, with empty slots.

    Attributes:
      section: which part of the protocol it is about.
      description: the right answer, in a sentence.
      chunks: "any": where packets have whole chunks, lanes are repeated to fill them. "partial": only for data planes
        that take fewer lanes, too. "exact": made for the limits of this data plane.
    """

    section: str
    description: str
    jobs: tuple[Job, ...]
    steps: tuple[Step, ...]
    chunks: str = "any"

    def not_applicable(self, limits: Limits) -> str:
        """Says why it can't be played on a data plane with these limits; empty if it can."""
        workers = max(len(job.workers) for job in self.jobs)
        if workers > limits.worker_limit:
            return f"a job has at most {limits.worker_limit} workers here"
        if limits.trees is not None and any((job.parent is not None) != limits.trees for job in self.jobs):
            return "its jobs have parents" if limits.trees else "its jobs have no parent"
        if not limits.multicast and any(job.group is not None for job in self.jobs):
            return "results don't go to a group here"
        if not limits.bare and self._leaves_out():
            return "packets without lanes are malformed here"
        if not limits.bare_copies and self._leaves_out_of_copies():
            return "copies of a result keep its lanes here"
        if self.chunks != "exact" and not limits.whole_chunks and self._lanes() > limits.lanes_per_chunk:
            return f"packets have at most {limits.lanes_per_chunk} lanes here"
        if limits.reach is not None and self._leap() > limits.reach:
            return f"a sequence may be {limits.reach} ahead of what is complete here"
        if self.chunks == "partial" and limits.whole_chunks:
            return f"packets have exactly {limits.lanes_per_chunk} lanes here; others are malformed, another case"
        return ""

    def _leap(self) -> int:
        """Returns how far contributions' sequences are from 0, where jobs begin; 0 if it was made for these limits."""
        if self.chunks == "exact":
            return 0
        contributions = [step.packet for step in self.steps if step.packet[2:3] == bytes([CONTRIBUTION])]
        sequences = [int.from_bytes(packet[12:16]) for packet in contributions]
        return max((min(sequence, (1 << 32) - sequence) for sequence in sequences), default=0)

    def _leaves_out(self) -> bool:
        """Says whether packets without lanes, or contributions that need none of the result, are well-formed in it."""
        packets = [step.packet for step in self.steps if step.verdict != "malformed"]
        return any(packet[3] & (BARE | NO_RESULT) for packet in packets)

    def _leaves_out_of_copies(self) -> bool:
        """Says whether a result that has lanes goes without them to some workers."""
        either = [answered_by_model(self, Limits(bare_copies=bare_copies)) for bare_copies in (False, True)]
        return self.chunks != "exact" and either[0] != either[1]

    def _lanes(self) -> int:
        """Returns the lanes of the longest packet."""
        counts = [int.from_bytes(step.packet[18:20]) for step in self.steps]
        return max((count for count in counts if count <= LANES_MAX), default=0)

    def fitted(self, limits: Limits) -> "Exchange":
        """Returns the exchange with each packet's lanes repeated to the length that the data plane wants."""
        if self.chunks != "any" or not limits.whole_chunks:
            return self
        lanes = limits.lanes_per_chunk
        steps = [
            replace(
                step,
                packet=_widened(step.packet, lanes),
                out=_widened(step.out, lanes),
                bare=_widened(step.bare, lanes),
            )
            for step in self.steps
        ]
        return replace(self, steps=tuple(steps))

    def addresses(self) -> tuple[str, ...]:
        """Returns the addresses of all that send or receive."""
        workers = [str(worker) for job in self.jobs for worker in job.workers]
        groups = [str(job.group) for job in self.jobs if job.group is not None]
        parents = [str(job.parent.address) for job in self.jobs if job.parent]
        return (*workers, *groups, *parents, STRANGER)


def _widened(packet: bytes, lanes: int) -> bytes:
    """Repeats the lanes to this number. A packet that is cut off, or too long, stays so."""
    if len(packet) < HEADER.size:
        return packet
    count = int.from_bytes(packet[18:20])
    if not 1 <= count <= LANES_MAX:
        return packet
    if packet[3] & BARE:
        return packet[:18] + lanes.to_bytes(2) + packet[20:]
    if len(packet) == HEADER.size:
        return packet
    surplus = len(packet) - HEADER.size - 4 * count
    words = [packet[at : at + 4].ljust(4, b"\0") for at in range(HEADER.size, HEADER.size + 4 * count, 4)]
    body = b"".join(islice(cycle(words), lanes))
    tail = packet[len(packet) - surplus :] if surplus > 0 else b""
    return packet[:18] + lanes.to_bytes(2) + (body + tail if surplus >= 0 else body[:surplus])


SlotVersion = tuple[int, int]


def _played_on_model(exchange: Exchange, limits: Limits) -> tuple[Switch, list[Step]]:
    switch = Switch(limits)
    for job in exchange.jobs:
        switch.add_job(job)
    steps = []
    for step in exchange.steps:
        answer = switch.on_packet(step.packet, step.source)
        to, bare_to = tuple(map(str, answer.to)), tuple(map(str, answer.bare_to))
        steps.append(Step(step.source, step.packet, answer.verdict, to, answer.packet, bare_to, answer.bare))
    return switch, steps


def answered_by_model(exchange: Exchange, limits: Limits) -> Exchange:
    """Returns the exchange with the verdicts and packets that the reference model answers."""
    return replace(exchange, steps=tuple(_played_on_model(exchange, limits)[1]))


def final_states(exchange: Exchange, limits: Limits) -> dict[SlotVersion, State]:
    """Returns what all slot versions of the exchange's jobs hold at the end."""
    switch, _ = _played_on_model(exchange, limits)
    return {
        (slot, version): switch.state(job, slot, version)
        for job in exchange.jobs
        for slot in range(job.slot_first, job.slot_first + job.slot_count)
        for version in (0, 1)
    }


@dataclass(frozen=True)
class Played:
    """A switch's behaviour in an exchange.

    Attributes:
      received: packets that came to each address, in order.
      verdicts: of each step, if the switch can tell.
      counts: how often it came to a verdict, for those that it counts, if it can tell.
      states: the contents of slot versions in the end, if it can tell.
      strays: packets from elsewhere than the switch, for people.
      not_compared: facts that the switch can't tell, and why, for people.
      translate: a packet of the exchange, for these addresses, with the switch's own numbers.
    """

    received: Mapping[str, Sequence[bytes]]
    verdicts: Sequence[str] | None = None
    counts: Mapping[str, int] | None = None
    states: Mapping[SlotVersion, State] | None = None
    strays: Sequence[str] = ()
    not_compared: Mapping[str, str] = field(default_factory=dict)
    translate: Callable[[bytes, Sequence[str]], bytes] = lambda packet, to: packet
