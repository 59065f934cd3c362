"""The ways to train that pace.py compares, and how long their steps should take. It imports no JAX."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jax_passing.scaling.pace import Pace, Stragglers, step_ends_s

RATE = 0.2
EVERY = 8  # H of local_sgd and diloco
SYNCHRONOUS = Pace()


@dataclass(frozen=True)
class Method:
    """One way to train.

    Attributes:
      make: the optimizer, from `jax_passing.optax`, an inner optimizer and the axis; None: by the parameter server.
      pace: how often, and how late, hosts wait for each other.
      share: of the bytes of float32 that travel.
      rate: the learning rate. A delay of s steps needs about 1 / s of it.
    """

    make: Callable[[Any, Any, str], Any] | None
    pace: Pace = SYNCHRONOUS
    share: float = 1.0
    rate: float = RATE


NEVER = 1 << 30


def _diloco(**arguments: Any) -> Callable[[Any, Any, str], Any]:
    return lambda pace, inner, axis: pace.diloco(inner, None, axis, every=EVERY, **arguments)


METHODS = {
    # Without any sum: what the others add to this is what hosts wait.
    "alone": Method(lambda pace, inner, axis: pace.local_sgd(inner, axis, every=NEVER), Pace(every=0)),
    "synchronous": Method(lambda pace, inner, axis: pace.stale(inner, axis, 0)),
    "stale 1": Method(lambda pace, inner, axis: pace.stale(inner, axis, 1), Pace(delay=1)),
    "stale 4": Method(lambda pace, inner, axis: pace.stale(inner, axis, 4), Pace(delay=4), rate=RATE / 4),
    "local_sgd": Method(lambda pace, inner, axis: pace.local_sgd(inner, axis, every=EVERY), Pace(every=EVERY)),
    "diloco": Method(_diloco(), Pace(every=EVERY)),
    "diloco, 2 parts, delay 3": Method(_diloco(fragments=2, delay=3), Pace(3, EVERY, 2)),
    "diloco, int8": Method(_diloco(wire_dtype="int8"), Pace(every=EVERY), share=0.25),
    "asynchronous": Method(None),
}


def label_of(stragglers: Stragglers) -> str:
    if not stragglers.hosts:
        return "none"
    return f"{'in turns' if stragglers.in_turns else 'the same host'}, {stragglers.slowdown:g} times"


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

    A step takes `compute_s`, times how slow a host is, and `beside_s`. A sum of all parameters in float32 takes
    `sum_s`. `push_s`: the same for the link of the parameter server, one host's update or parameters one way.
    """
    if method.make is None:
        return _by_server(hosts, steps, stragglers, compute_s, beside_s, push_s) / steps
    return step_ends_s(method.pace, hosts, stragglers, steps, compute_s, beside_s, sum_s * method.share)[-1] / steps


def _by_server(
    hosts: int, steps: int, stragglers: Stragglers, compute_s: float, beside_s: float, push_s: float
) -> float:
    """Each host by itself: computes, pushes through the server's link, takes the parameters from there."""
    at_s = [0.0] * hosts
    done = [0] * hosts
    in_free_s = out_free_s = 0.0

    def ready_s(host: int) -> float:
        return at_s[host] + (compute_s * float(stragglers.factors(hosts, done[host] + 1)[host]) + beside_s)

    while min(done) < steps:
        pushed_s, host = min((ready_s(host), host) for host in range(hosts) if done[host] < steps)
        in_free_s = max(pushed_s, in_free_s) + push_s
        out_free_s = max(in_free_s, out_free_s) + push_s
        at_s[host] = out_free_s
        done[host] += 1
    return max(at_s)
