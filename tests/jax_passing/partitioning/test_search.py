"""The search for the best cuts, against trying all cuts."""

import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_passing.errors import UsageError
from jax_passing.partitioning.memory import Chain, Limits, Weight, checkpoints_of
from jax_passing.partitioning.search import best_cuts, slowest_share, stage_bytes, stage_s


def random_chain(random, n):
    uses = [sorted(random.sample(range(n), random.randint(1, min(3, n)))) for _ in range(random.randint(0, 4))]
    return Chain(
        compute_s=np.array([float(random.randint(0, 5)) for _ in range(n)]),
        stash_bytes=np.array([float(random.randint(0, 3)) for _ in range(n)]),
        cut_bytes=np.array([0.0, *(float(random.randint(0, 4)) for _ in range(n - 1)), 0.0]),
        may_cut=np.array([random.random() < 0.8 for _ in range(n + 1)]),
        weights=[Weight(float(random.randint(1, 5)), tuple(numbers)) for numbers in uses],
    )


def all_cuts(chain, stages):
    n = len(chain.compute_s)
    return itertools.combinations([position for position in range(1, n) if chain.may_cut[position]], stages - 1)


def options(chain, limits, first, last, after):
    """Yields (bytes, time) of the stage, if it computes nothing again, or its checkpoints of any size up to any end."""
    in_flight = min(limits.microbatches, after + 1)
    yield by_hand(chain, first, last, in_flight), 0.0
    for ends in checkpoints_of(chain) if limits.remat else []:
        transient = max(sum(chain.stash_bytes[begin:end]) for begin, end in itertools.pairwise(ends))
        for end in {*(one for one in ends if first < one < last), last}:
            begins = [first, *(one for one in ends if first < one < end)]
            kept = sum(chain.cut_bytes[begin] for begin in begins) + sum(chain.stash_bytes[end:last])
            again_s = sum(chain.compute_s[first:end]) * chain.forward_share
            yield by_hand(chain, first, last, 0) + in_flight * kept + transient, again_s


def slowest_of(chain, limits, stages, cuts):
    """Returns the time of the slowest stage by the definition; infinite if one doesn't fit."""
    times = []
    for number, (first, last) in enumerate(itertools.pairwise((0, *cuts, len(chain.compute_s)))):
        fitting = [
            again_s
            for held, again_s in options(chain, limits, first, last, stages - 1 - number)
            if held <= limits.memory_bytes * (1 + 1e-12)
        ]
        compute_s = sum(chain.compute_s[first:last]) + min(fitting, default=math.inf)
        sending_s = (chain.cut_bytes[first] + chain.cut_bytes[last]) / limits.link_bytes_per_s
        times.append(max(compute_s, sending_s) if limits.overlap else compute_s + sending_s)
    return max(times)


def judged(chain, limits, stages, cuts):
    """Returns (time of the slowest stage, bytes that cross cuts); infinite if a stage doesn't fit."""
    ends = (0, *cuts, len(chain.compute_s))
    pairs = list(itertools.pairwise(ends))
    for number, (first, last) in enumerate(pairs):
        if stage_bytes(chain, limits, first, last, stages - 1 - number) > limits.memory_bytes:
            return math.inf, math.inf
    times = [stage_s(chain, limits, *pair, stages - 1 - number) for number, pair in enumerate(pairs)]
    return max(times), sum(chain.cut_bytes[position] for position in cuts)


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 9), st.integers(1, 4))
def test_no_other_cuts_are_better(random, n, stages):
    chain = random_chain(random, n)
    limits = Limits(
        link_bytes_per_s=random.choice([math.inf, 0.5, 2.0]),
        overlap=random.random() < 0.5,
        memory_bytes=random.choice([math.inf, 12.0, 25.0]),
        microbatches=random.randint(1, 4),
        remat=random.random() < 0.5,
    )
    best = min((judged(chain, limits, stages, cuts) for cuts in all_cuts(chain, stages)), default=(math.inf, 0.0))
    if math.isinf(best[0]):
        with pytest.raises(UsageError):
            best_cuts(chain, stages, limits)
    else:
        cuts = best_cuts(chain, stages, limits)
        assert judged(chain, limits, stages, cuts) == pytest.approx(best)
        assert slowest_of(chain, limits, stages, cuts) == pytest.approx(best[0])  # nothing less is computed again
        for share in (0.1, 0.5):
            allowed = [
                (sent, slowest)
                for slowest, sent in (judged(chain, limits, stages, cuts) for cuts in all_cuts(chain, stages))
                if slowest <= best[0] * (1 + share) * (1 + 1e-12)
            ]
            traded = judged(chain, limits, stages, best_cuts(chain, stages, replace(limits, imbalance=share)))
            assert traded[::-1] == pytest.approx(min(allowed))
    total = chain.compute_s.sum()
    slowest = min((judged(chain, Limits(), stages, cuts)[0] for cuts in all_cuts(chain, stages)), default=None)
    if total and slowest is not None:
        share = slowest_share(chain.compute_s, np.flatnonzero(chain.may_cut[1:-1]) + 1, stages)
        assert share == pytest.approx(slowest * stages / total, rel=2e-3)


def by_hand(chain, first, last, in_flight):
    """Adds up bytes by the definition: each weight that is used once, and `in_flight` times what is carried in and each
    stash."""
    weights = sum(weight.bytes for weight in chain.weights if any(first <= use < last for use in weight.uses))
    return weights + in_flight * (chain.cut_bytes[first] + sum(chain.stash_bytes[first:last]))


@given(st.randoms(use_true_random=False), st.integers(1, 9))
def test_the_memory_of_a_stage(random, n):
    chain = random_chain(random, n)
    first = random.randrange(n)
    last = random.randint(first + 1, n)
    for after in range(4):
        held = stage_bytes(chain, Limits(microbatches=3), first, last, after)
        assert held == pytest.approx(by_hand(chain, first, last, min(3, after + 1)))


def test_what_is_sent_counts_beside_or_after_what_is_computed():
    chain = Chain(np.array([4.0, 4.0]), np.zeros(2), np.array([0.0, 6.0, 0.0]), np.ones(3, bool))
    assert stage_s(chain, Limits(2.0, overlap=True), 0, 1) == 4.0
    assert stage_s(chain, Limits(1.0, overlap=True), 0, 1) == 6.0
    assert stage_s(chain, Limits(2.0, overlap=False), 0, 1) == 7.0
    assert stage_s(chain, Limits(), 0, 2) == 8.0


def test_too_few_positions():
    chain = Chain(np.ones(3), np.zeros(3), np.zeros(4), np.zeros(4, bool))
    with pytest.raises(UsageError, match="0 positions, too few for 2 stages"):
        best_cuts(chain, 2)


def test_too_little_memory():
    chain = Chain(np.ones(2), np.zeros(2), np.zeros(3), np.ones(3, bool), [Weight(100.0, (0,))])
    with pytest.raises(UsageError, match=r"fits into 99 bytes .* least possible is 100 bytes, .* Use remat=True, more"):
        best_cuts(chain, 2, Limits(memory_bytes=99.0))


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(2, 9), st.integers(1, 3))
def test_the_least_possible_memory_is_enough(random, n, stages):
    chain = random_chain(random, n)
    if sum(chain.may_cut[1:n]) < stages - 1:
        return
    least = Limits(memory_bytes=0.5, microbatches=3, remat=True)
    try:
        best_cuts(chain, stages, least)
    except UsageError as error:
        enough = float(re.search(r"least possible is (\S+) bytes, even", str(error))[1])
        best_cuts(chain, stages, replace(least, memory_bytes=enough))
        with pytest.raises(UsageError):
            best_cuts(chain, stages, replace(least, memory_bytes=enough - 0.5))
