"""The C++ slot pool in this process: every case, every verdict."""

import pytest

from jax_passing.conformance import run
from jax_passing.conformance.switch_under_test import SlotPool

DEVICE = SlotPool()
SEEDS = 300


@pytest.mark.parametrize(
    "exchange", run.cases(DEVICE.limits, seed=0, exchanges=0), ids=lambda exchange: exchange.description
)
def test_case(exchange):
    outcome = run.outcome(DEVICE, exchange)
    if outcome.not_applicable:
        pytest.skip(outcome.not_applicable)
    assert not outcome.failure


@pytest.mark.parametrize("seed", range(0, SEEDS, 50))
def test_random_exchanges(seed):
    exchanges = run.random_exchanges.exchanges(DEVICE.limits, seed, 50)
    assert [one.failure for one in (run.outcome(DEVICE, exchange) for exchange in exchanges) if one.failure] == []
