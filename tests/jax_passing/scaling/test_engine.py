"""SimGrid shares resources as worked out by hand, and is found, or asked for by name."""

import random
import subprocess

import pytest

from jax_passing.errors import ConfigError, SimulationError
from jax_passing.scaling import engine
from jax_passing.scaling.engine import Flow, Problem, durations_s, independent_parts
from support.simgrid import needs_simgrid

A, B, C = ("link", "a"), ("link", "b"), ("link", "c")
SIZE = 10**12


@needs_simgrid
def test_max_min_shares():
    """Three flows: one through a and b, one through a, one through b. A link of 1 and one of 3 bytes a second.

    On a each gets 1/2; so on b the other one gets 5/2, ends, and leaves the first one its 1/2.
    """
    flows = [Flow(SIZE, (A, B)), Flow(SIZE, (A,)), Flow(SIZE, (B,))]
    longest, alone = durations_s([Problem({A: 1e9, B: 3e9}, flows), Problem({B: 2.5e9}, flows[2:])])
    assert longest == pytest.approx(SIZE / 0.5e9, rel=1e-6)
    assert alone == pytest.approx(SIZE / 2.5e9, rel=1e-6)


@needs_simgrid
def test_what_one_leaves_the_others_take():
    """One of two flows ends at half the time; then the other one has the link to itself."""
    (took_s,) = durations_s([Problem({A: 1e9}, [Flow(SIZE, (A,)), Flow(3 * SIZE, (A,))])])
    assert took_s == pytest.approx(4 * SIZE / 1e9, rel=1e-6)


def test_parts_that_are_alike_are_simulated_once():
    flows = [Flow(5, (A,)), Flow(5, (B,)), Flow(5, (C,))]
    assert len(independent_parts(Problem({A: 1.0, B: 1.0, C: 1.0}, flows))) == 1
    assert len(independent_parts(Problem({A: 1.0, B: 2.0, C: 1.0}, flows))) == 2
    assert len(independent_parts(Problem({A: 1.0, B: 1.0, C: 1.0}, [*flows, Flow(5, (A, B))]))) == 2


def fair_duration_s(capacities, flows):
    """Progressive filling, written anew: the rates of max-min fairness, until the last flow has ended."""
    left = dict(enumerate(float(flow.size_bytes) for flow in flows))
    now_s = 0.0
    while left:
        rates, free = {}, dict(capacities)
        while len(rates) < len(left):
            users = {name: [i for i in left if i not in rates and name in flows[i].route] for name in free}
            share, name = min((free[name] / len(own), name) for name, own in users.items() if own)
            for i in users[name]:
                rates[i] = share
                for one in flows[i].route:
                    free[one] -= share
        step_s = min(left[i] / rates[i] for i in left)
        left = {i: size - rates[i] * step_s for i, size in left.items() if size > rates[i] * step_s * (1 + 1e-9)}
        now_s += step_s
    return now_s


@needs_simgrid
def test_random_problems_take_what_progressive_filling_gives():
    seed = 23
    rng = random.Random(seed)
    problems = []
    for _ in range(20):
        names = [("link", i) for i in range(5)]
        flows = [Flow(rng.randrange(1, 9) * 10**11, tuple(rng.sample(names, rng.randrange(1, 4)))) for _ in range(8)]
        problems.append(Problem({name: rng.randrange(1, 6) * 1e9 for name in names}, flows))
    expected = [fair_duration_s(one.capacities, one.flows) for one in problems]
    assert durations_s(problems) == pytest.approx(expected, rel=1e-4), seed


def test_a_missing_simgrid_is_asked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(engine.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(engine, "DEBIAN_PACKAGES", tmp_path)
    with pytest.raises(ConfigError, match="apt-get install python3-simgrid"):
        durations_s([])


def test_another_version_is_reported(monkeypatch, tmp_path):
    (tmp_path / "simgrid.py").write_text("raise AttributeError('no create_star_zone')")
    monkeypatch.setattr(engine, "find_simgrid", lambda: tmp_path / "simgrid.py")
    with pytest.raises(SimulationError, match=r"no create_star_zone[\s\S]*3\.32"):
        durations_s([Problem({A: 1.0}, [Flow(1, (A,))])])


def test_a_simulation_that_lasts_too_long_is_ended(monkeypatch):
    def late(*_, timeout, **__):
        raise subprocess.TimeoutExpired("simgrid", timeout)

    monkeypatch.setattr(engine.subprocess, "run", late)
    monkeypatch.setattr(engine, "find_simgrid", lambda: "simgrid.so")
    with pytest.raises(SimulationError, match="fewer or smaller clusters"):
        durations_s([Problem({A: 1.0}, [Flow(1, (A,))])])
