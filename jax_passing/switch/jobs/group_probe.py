"""A switch finds out whether a multicast group reaches all ranks of a job while they join: so nobody has to configure
it.

The switch offers the group; each host joins it and says so; the switch then sends bursts to it, as results will travel,
until all hosts have said that they heard one whole. No I/O: time is an argument.
"""

import enum
from collections.abc import Collection

from jax_passing.errors import names
from jax_passing.switch.data_planes.data_plane import MulticastGroup

READY_S = 3.0  # hosts answer at once, if they aren't very busy; one that doesn't is stopped or stuck
ROUNDS = 5  # a burst may lose packets, and switches on the way may still be learning who has joined
ROUND_S = 0.04  # until the second burst; each further one waits twice as long, for hosts that are too busy to answer


class ProbeStep(enum.Enum):
    WAIT = enum.auto()
    SEND = enum.auto()  # a burst is due
    HEARD = enum.auto()  # by all: results go to the group
    NOT_HEARD = enum.auto()  # results go to each rank; `reason` says why


class GroupProbe:
    """A switch sends probes to a multicast group, to see which ranks hear them.

    Attributes:
      group: where to send.
      nonce: tells this attempt from any other, here and on other switches.
      reason: why it is NOT_HEARD.
    """

    def __init__(self, group: MulticastGroup, nonce: int, ranks: Collection[int], now: float):
        """Begins to ask. `ranks`: the lowest of each member of the job."""
        self.group = group
        self.nonce = nonce
        self.reason = ""
        self._unready = set(ranks)
        self._deaf = set(ranks)
        self._rounds_left = ROUNDS
        self._round_s = ROUND_S
        self._next = now + READY_S

    def ready(self, rank: int, problem: str) -> None:
        """The rank has joined the group, or couldn't."""
        self._unready.discard(rank)
        if problem and not self.reason:
            self.reason = f"rank {rank} can't join the group {self.group.address}: {problem}"

    def heard(self, rank: int) -> None:
        self._deaf.discard(rank)

    def fail(self, reason: str) -> None:
        """The group is of no use."""
        self.reason = reason

    def step(self, now: float) -> ProbeStep:
        """Says what to do now. Call it after each message, and every few milliseconds."""
        if self.reason:
            return ProbeStep.NOT_HEARD
        if not self._deaf:
            return ProbeStep.HEARD
        if self._unready:
            if now >= self._next:
                self.reason = f"{names(sorted(self._unready))} didn't answer for {READY_S:g} s"
                return ProbeStep.NOT_HEARD
            return ProbeStep.WAIT
        if self._rounds_left == ROUNDS or now >= self._next:
            if self._rounds_left == 0:
                self.reason = f"the group {self.group.address} doesn't reach {names(sorted(self._deaf))}"
                return ProbeStep.NOT_HEARD
            self._rounds_left -= 1
            self._next = now + self._round_s
            self._round_s *= 2
            return ProbeStep.SEND
        return ProbeStep.WAIT
