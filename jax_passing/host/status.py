"""A host's own view of its job: is it fast, and what does it wait for?"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jax_passing.config import address_text
from jax_passing.errors import Failure, counted, rate
from jax_passing.host.stats import busy_gbit, busy_share

if TYPE_CHECKING:
    from jax_passing.config import Settings
    from jax_passing.host.control.ranks import Ranks
    from jax_passing.host.stats import Stats


@dataclass(frozen=True)
class WaitingSum:
    """A sum is under way.

    Attributes:
      source: its name, which begins with its place in the program: "train.py:31 (grads)".
      execution: which execution of the program.
      step: which call of the same psum in that execution.
      waited_s: for how many seconds.
    """

    source: str
    execution: int
    step: int
    waited_s: float

    def __str__(self) -> str:
        return f"{self.source} (execution {self.execution}, step {self.step}), for {self.waited_s:.1f} s"


@dataclass(frozen=True)
class SessionStatus:
    """The status of a session at one moment, which `str` writes in a line. Counts are since `init`, or since the last
    `rejoin`.

    Attributes:
      job: the job's name; None without a switch.
      rank: of this host.
      world_size: how many hosts there are.
      epoch: of the job; 0 without a switch.
      switches: "host:port" of each switch that the session was given; empty without one.
      error: why sums fail from now on; None if they don't.
      session_s: seconds since then.
      sums_completed: sums over the hosts that are complete.
      sums_in_flight: sums that began and aren't complete.
      busy_gbit: bits of the tensors of complete sums in a second, in Gbit/s, while any sum was under way; 0 if none
        was.
      busy_share: share of `session_s` in which any sum was under way, from 0 to 1. The program may have computed
        meanwhile.
      resends: packets that were sent again.
      oldest: the sum that has been under way longest; None if none is.
    """

    job: str | None
    rank: int
    world_size: int
    epoch: int
    switches: tuple[str, ...]
    error: str | None
    session_s: float
    sums_completed: int
    sums_in_flight: int
    busy_gbit: float
    busy_share: float
    resends: int
    oldest: WaitingSum | None

    def __str__(self) -> str:
        at = f", at {','.join(self.switches)}" if self.switches else ""
        job = "without a switch" if not self.switches else f"in job {self.job!r}, epoch {self.epoch}{at}"
        who = f"rank {self.rank} of {self.world_size} {job}"
        parts = [
            f"{who}: {counted(self.sums_completed, 'sum')}",
            rate(self.busy_gbit),
            f"{self.busy_share:.0%} of the time in sums",
            counted(self.resends, "resend"),
        ]
        text = ", ".join(parts) + "."
        if self.oldest is not None:
            text += f" Of {self.sums_in_flight} under way, the oldest is {self.oldest}."
        return text if self.error is None else f"{text} Failed: {self.error}"


def status_of(
    settings: "Settings", who: tuple[int, int, int], ranks: "Ranks | None", stats: "Stats", failure: Failure | None
) -> SessionStatus:
    """Makes the status. `who`: rank, world size and epoch."""
    rank, world_size, epoch = who
    found = None if ranks is None or failure is not None else ranks.oldest()
    oldest = None
    if found is not None:
        stall, waited_us = found
        oldest = WaitingSum(stall.site_name, stall.execution, stall.step, waited_us / 1e6)
    return SessionStatus(
        job=settings.job,
        rank=rank,
        world_size=world_size,
        epoch=epoch,
        switches=tuple(address_text(*address) for address in settings.switch or ()),
        error=None if failure is None else f"{failure.kind}: {failure.message}",
        session_s=stats["session_s"],
        sums_completed=stats["sums_completed"],
        sums_in_flight=0 if failure is not None else stats["sums_started"] - stats["sums_completed"],
        busy_gbit=busy_gbit(stats),
        busy_share=busy_share(stats),
        resends=stats["packets_resent"],
        oldest=oldest,
    )
