"""Places the sums of buckets beside the computation that makes them, on a virtual clock."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class BucketSum:
    """The sum of a bucket.

    Attributes:
      ready_s: when its last gradient is final.
      time_s: how long it takes.
      shared_processors_s: how long it keeps the processors that hosts compute on; 0 if it has others.
    """

    ready_s: float
    time_s: float
    shared_processors_s: float = 0.0


@dataclass(frozen=True)
class Timeline:
    """A step of training.

    Attributes:
      time_s: until all is computed and summed.
      compute_s: until all is computed.
      sums_s: of all sums together.
    """

    time_s: float
    compute_s: float
    sums_s: float

    @property
    def hidden(self) -> float:
        """Returns the share of the sums' time in which devices still compute."""
        return 1 - (self.time_s - self.compute_s) / self.sums_s if self.sums_s else 1.0


def place(compute_s: float, sums: Iterable[BucketSum], overlap: bool = True) -> Timeline:
    """Buckets share a host's link: they are summed one after the other, in the order in which they are complete.

    Without `overlap` they are summed when all is computed. Computation stands still for as long as sums beside it need
    its processors.
    """
    end_s = sums_s = taken_s = 0.0  # taken_s: from the computation, by sums at the same time
    for one in sorted(sums, key=lambda one: one.ready_s):
        begin_s = max(end_s, one.ready_s + taken_s if overlap else compute_s)
        end_s = begin_s + one.time_s
        sums_s += one.time_s
        if one.shared_processors_s:
            beside_s = max(0.0, min(end_s, compute_s + taken_s) - begin_s)
            taken_s += one.shared_processors_s * beside_s / one.time_s
    compute_s += taken_s
    return Timeline(max(end_s, compute_s), compute_s, sums_s)
