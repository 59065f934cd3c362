"""The ways to train that pace.py compares, and how long their steps should take. It imports no JAX."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

RATE = 0.2
EVERY = 8  # H of local_sgd and diloco


@dataclass(frozen=True)
class Method:
    """One way to train.

    Attributes:
      make: the optimizer, from `jax_passing.optax`, an inner optimizer and the axis; None: by the parameter server.
      every: after so many steps the hosts sum, in `fragments` parts at steps that are spread out.
      delay: so many steps later they need the result.
      share: of the bytes of float32 that travel.
      rate: the learning rate. A delay of s steps needs about 1 / s of it.
    """

    make: Callable[[Any, Any, str], Any] | None
    every: int = 1
    fragments: int = 1
    delay: int = 0
    share: float = 1.0
    rate: float = RATE

    def sums_at(self, step: int) -> list[int]:
        """Returns which parts' sums start at the end of a step; steps count from 1."""
        if not self.every:
            return []
        starts = [part * self.every // self.fragments for part in range(self.fragments)]
        return [part for part, start in enumerate(starts) if (step - start) % self.every == 0]


NEVER = 1 << 30


def _diloco(**arguments: Any) -> Callable[[Any, Any, str], Any]:
    return lambda pace, inner, axis: pace.diloco(inner, None, axis, every=EVERY, **arguments)


METHODS = {
    # Without any sum: what the others add to this is what hosts wait.
    "alone": Method(lambda pace, inner, axis: pace.local_sgd(inner, axis, every=NEVER), every=0),
    "synchronous": Method(lambda pace, inner, axis: pace.stale(inner, axis, 0)),
    "stale 1": Method(lambda pace, inner, axis: pace.stale(inner, axis, 1), delay=1),
    "stale 4": Method(lambda pace, inner, axis: pace.stale(inner, axis, 4), delay=4, rate=RATE / 4),
    "local_sgd": Method(lambda pace, inner, axis: pace.local_sgd(inner, axis, every=EVERY), every=EVERY),
    "diloco": Method(_diloco(), every=EVERY),
    "diloco, 2 parts, delay 3": Method(_diloco(fragments=2, delay=3, mixing=0.5), every=EVERY, fragments=2, delay=3),
    "diloco, int8": Method(_diloco(wire="int8"), every=EVERY, share=0.25),
    "asynchronous": Method(None),
}


@dataclass(frozen=True)
class Stragglers:
    """Hosts that are slow by a factor: one of them in turns, or always the last one."""

    factor: float = 1.0
    in_turns: bool = True

    @property
    def label(self) -> str:
        if self.factor == 1:
            return "none"
        return f"{'in turns' if self.in_turns else 'the same host'}, {self.factor:g} times"

    def factor_of(self, host: int, hosts: int, step: int) -> float:
        slow = step % hosts if self.in_turns else hosts - 1
        return self.factor if host == slow else 1.0


def predicted_step_s(
    method: Method,
    hosts: int,
    steps: int,
    compute_s: float,
    beside_s: float,
    sum_s: float,
    stragglers: Stragglers,
    push_s: float,
) -> float:
    """Predicts the time of a step, of the slowest host, on a virtual clock.

    A step takes `compute_s`, times how slow a host is, and `beside_s`. Sums of all parameters take `sum_s` on the
    links, one after the other. `push_s`: the same for the link of the parameter server, one host's update or parameters
    one way.
    """

    def compute(host: int, step: int) -> float:
        return compute_s * stragglers.factor_of(host, hosts, step) + beside_s

    ends = [0.0] * hosts
    if method.make is None:
        return _by_server(ends, steps, compute, push_s) / steps
    link_free_s = 0.0
    needed: dict[int, float] = {}  # by step, when the sums arrive that it needs
    for step in range(1, steps + 1):
        ends = [end + compute(host, step) for host, end in enumerate(ends)]
        for _ in method.sums_at(step):
            link_free_s = max(max(ends), link_free_s) + sum_s * method.share / method.fragments
            needed[step + method.delay] = link_free_s
        arrived_s = needed.pop(step, 0.0)
        ends = [max(end, arrived_s) for end in ends]
    return max(ends) / steps


def _by_server(ends: Sequence[float], steps: int, compute: Callable[[int, int], float], push_s: float) -> float:
    """Each host by itself: computes, pushes through the server's link, takes the parameters from there."""
    at = list(ends)
    done = [0] * len(at)
    in_free_s = out_free_s = 0.0
    while min(done) < steps:
        ready = [(at[h] + compute(h, done[h] + 1), h) for h in range(len(at)) if done[h] < steps]
        pushed_s, host = min(ready)
        in_free_s = max(pushed_s, in_free_s) + push_s
        out_free_s = max(in_free_s, out_free_s) + push_s
        at[host] = out_free_s
        done[host] += 1
    return max(at)
