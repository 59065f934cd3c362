"""Hosts wait for each other in every step, later, or seldom; this says what slow hosts cost then."""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jax_passing.errors import ConfigError

STEPS = 256  # of a simulated training; the second half of them is timed


@dataclass(frozen=True)
class Pace:
    """A pace says how hosts wait for each other.

    Attributes:
      stale: a step uses the sum of so many steps before.
      every: hosts sum once in so many steps.
    """

    stale: int = 0
    every: int = 1

    def __str__(self) -> str:
        if self.every > 1:
            return f"local:{self.every}"
        return f"stale:{self.stale}" if self.stale else "synchronous"


def parse_pace(text: str) -> Pace:
    """Reads "synchronous", "stale:S" or "local:H". Raises ConfigError for anything else."""
    if text == "synchronous":
        return Pace()
    match = re.fullmatch(r"(stale|local):([1-9][0-9]{0,3})", text)
    if match is None:
        raise ConfigError(
            f"There is no pace {text!r}. Take `synchronous`, `stale:S` (a step uses the sum of S steps before), or "
            "`local:H` (hosts sum once in H steps)."
        )
    number = int(match[2])
    return Pace(stale=number) if match[1] == "stale" else Pace(every=number)


@dataclass(frozen=True)
class Stragglers:
    """Some hosts are slow.

    Attributes:
      hosts: so many are slow in each step.
      slowdown: they compute so many times as long.
      in_turns: others are slow in each step, not always the same.
    """

    hosts: int = 0
    slowdown: float = 1.0
    in_turns: bool = False

    def __post_init__(self) -> None:
        if self.hosts < 0 or not 1 <= self.slowdown < np.inf:
            raise ConfigError(
                f"Stragglers are 0 or more, not {self.hosts}, and take 1 or more times as long, not {self.slowdown}."
            )

    def factors(self, hosts: int, step: int) -> NDArray[np.float64]:
        """Returns how many times as long each host computes in a step."""
        slow = min(self.hosts, hosts)
        first = step * slow if self.in_turns else 0
        factors = np.ones(hosts)
        factors[(first + np.arange(slow)) % hosts] = self.slowdown
        return factors


def mean_step_s(
    pace: Pace, hosts: int, stragglers: Stragglers, compute_s: float, synchronous_s: float, sums_s: float
) -> float:
    """Returns how long a step takes on average.

    Args:
      pace: how often hosts wait.
      hosts: so many train.
      stragglers: the slow ones.
      compute_s: time for which a host computes in a step.
      synchronous_s: time of a synchronous step with the slowest host.
      sums_s: time that the sums of a step take, if nothing else goes on.
    """
    if pace == Pace():
        return synchronous_s
    ends_s = np.zeros(hosts)  # of each host's computation
    sums_end_s: list[float] = []
    steps = -(-STEPS // pace.every) * pace.every
    half_s = 0.0
    for step in range(steps):
        if pace.stale and step > pace.stale:  # the sum of step - stale - 1 was to be there before this step
            ends_s = np.maximum(ends_s, sums_end_s[step - pace.stale - 1])
        ends_s = ends_s + compute_s * stragglers.factors(hosts, step)
        if pace.stale:
            sums_end_s.append(max(float(ends_s.max()), sums_end_s[-1] if sums_end_s else 0.0) + sums_s)
        elif (step + 1) % pace.every == 0:
            ends_s = np.full(hosts, ends_s.max() + sums_s)
        if step == steps // 2 - 1:
            half_s = float(ends_s.max())
    return (float(ends_s.max()) - half_s) / (steps - steps // 2)
