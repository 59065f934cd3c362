"""Flows share links as worked out by hand, and as SimGrid has them share."""

import random

import pytest

from jax_passing.predict.cluster import Cluster
from jax_passing.predict.fair_shares import duration_s
from jax_passing.predict.schemes import SCHEMES
from support import simgrid

A, B = ("link", "a"), ("link", "b")


def test_max_min_shares():
    """Three flows: one through a and b, one through a, one through b. A link of 1 and one of 3 bytes a second.

    On a each gets 1/2; so on b the other one gets 5/2, ends, and leaves the first one its 1/2.
    """
    flows = [(10.0, (A, B)), (10.0, (A,)), (10.0, (B,))]
    assert duration_s({A: 1.0, B: 3.0}, flows) == pytest.approx(20, rel=1e-12)
    assert duration_s({A: 1.0, B: 3.0}, [(10.0, (A, B)), (10.0, (A,)), (100.0, (B,))]) == pytest.approx(
        20 + (100 - 50) / 3, rel=1e-12
    )


def test_what_one_leaves_the_others_take():
    """One of two flows ends at half the time; then the other one has the link to itself."""
    assert duration_s({A: 1.0}, [(1.0, (A,)), (3.0, (A,))]) == pytest.approx(4, rel=1e-12)


def test_nothing_takes_no_time():
    assert duration_s({A: 1.0}, []) == 0.0


def random_problem(rng):
    names = [("link", number) for number in range(5)]
    flows = [(rng.randrange(1, 9) / 10, rng.sample(names, rng.randrange(1, 4))) for _ in range(8)]
    return {name: rng.randrange(1, 6) * 1e9 for name in names}, flows


@pytest.mark.slow
@pytest.mark.skipif(simgrid.find() is None, reason="no SimGrid for this Python: apt-get install python3-simgrid")
def test_simgrid_finds_the_same_times():
    """Ten digits are the same."""
    seed = 23
    rng = random.Random(seed)
    drawn = [random_problem(rng) for _ in range(200)]
    clusters = [
        Cluster(hosts=hosts, devices_per_host=devices, rack_hosts=rack, oversubscription=over, loss=loss)
        for hosts in (2, 8, 96)
        for devices, loss in ((1, 0.0), (4, 0.01))
        for rack, over in ((None, 1.0), (16, 1.5), (24, 4.0))
    ]
    built = [builder(cluster) for cluster in clusters for builder in SCHEMES.values()]
    phases = [phase for scheme in built if scheme is not None for phase in scheme.phases]
    problems = [*drawn, *((phase.capacities, phase.flows) for phase in phases)]
    off = [
        abs(duration_s(*problem) / found_s - 1)
        for problem, found_s in zip(problems, simgrid.durations_s(problems), strict=True)
    ]
    print(f"seed {seed}: {max(off[: len(drawn)]):.1e} off in {len(drawn)} drawn problems, ", end="")
    print(f"{max(off[len(drawn) :]):.1e} in {len(phases)} of schemes")
    assert max(off) < 1e-10
