"""Hosts wait for each other in every step, later, or seldom; this says what slow hosts cost then."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jax_passing.errors import ConfigError

STEPS_MIN = 256  # of a simulated training; the second half of them is timed


@dataclass(frozen=True)
class Pace:
    """A pace says how hosts wait for each other.

    Attributes:
      delay: the number of steps from the start of a sum to the step that needs it.
      every: the number of steps from one sum to the next; 0: hosts never sum.
      fragments: the number of parts in which they do so, at steps that are spread out.
    """

    delay: int = 0
    every: int = 1
    fragments: int = 1

    def sums_at(self, step: int) -> int:
        """Returns how many parts' sums start at the end of a step; steps count from 1."""
        if not self.every:
            return 0
        return sum((step - part * self.every // self.fragments) % self.every == 0 for part in range(self.fragments))


@dataclass(frozen=True)
class Stragglers:
    """Some hosts are slow.

    Attributes:
      hosts: the number of slow ones in each step.
      slowdown: how many times as long they compute.
      in_turns: others are slow in each step, not always the last ones.
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
        first = step * slow if self.in_turns else hosts - slow
        factors = np.ones(hosts)
        factors[(first + np.arange(slow)) % hosts] = self.slowdown
        return factors


def step_ends_s(
    pace: Pace, hosts: int, stragglers: Stragglers, steps: int, compute_s: float, beside_s: float, sums_s: float
) -> list[float]:
    """Returns when each of `steps` steps of a training ends on the last host, on a virtual clock.

    Args:
      pace: how often hosts wait.
      hosts: their number.
      stragglers: the slow ones.
      steps: their number.
      compute_s: time for which a host computes in a step.
      beside_s: time that a step takes beside that, on slow hosts as on others.
      sums_s: time that the sums of all gradients or parameters take. They travel one after the other.
    """
    ends_s = np.zeros(hosts)
    links_free_s = 0.0
    needed_s: dict[int, float] = {}  # by step, when the sums arrive that it needs
    found = []
    for step in range(1, steps + 1):
        ends_s = ends_s + compute_s * stragglers.factors(hosts, step) + beside_s
        for _ in range(pace.sums_at(step)):
            links_free_s = max(float(ends_s.max()), links_free_s) + sums_s / pace.fragments
            needed_s[step + pace.delay] = links_free_s
        ends_s = np.maximum(ends_s, needed_s.pop(step, 0.0))
        found.append(float(ends_s.max()))
    return found


def mean_step_s(
    pace: Pace, hosts: int, stragglers: Stragglers, compute_s: float, synchronous_s: float, sums_s: float
) -> float:
    """Returns how long a step takes on average; `synchronous_s`: a synchronous one with the slowest host."""
    if pace == Pace():
        return synchronous_s
    every = max(1, pace.every)
    half = -(-STEPS_MIN // (2 * every)) * every  # as many sums in each half
    ends_s = step_ends_s(pace, hosts, stragglers, 2 * half, compute_s, 0.0, sums_s)
    return (ends_s[-1] - ends_s[half - 1]) / half
