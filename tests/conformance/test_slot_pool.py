"""The C++ slot pool in this process: every case, every verdict."""

import pytest

from jax_passing.conformance import run
from jax_passing.conformance.switch_under_test import SlotPool

DEVICES = {"any sequence": SlotPool(), "reach 1024": SlotPool(reach=1024), "reach 64": SlotPool(reach=64)}
SEEDS = 300
CASES = [
    pytest.param(name, exchange, id=f"{name}: {exchange.description}")
    for name, device in DEVICES.items()
    for exchange in run.cases(device.limits, seed=0, exchanges=0)
]


@pytest.mark.parametrize(("name", "exchange"), CASES)
def test_case(name, exchange):
    outcome = run.outcome(DEVICES[name], exchange)
    if outcome.not_applicable:
        pytest.skip(outcome.not_applicable)
    assert not outcome.failure


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(50, SEEDS, 50))])
@pytest.mark.parametrize("name", DEVICES)
def test_random_exchanges(name, seed):
    device = DEVICES[name]
    exchanges = run.random_exchanges.exchanges(device.limits, seed, 50)
    assert [one.failure for one in (run.outcome(device, exchange) for exchange in exchanges) if one.failure] == []
