"""The C++ slot pool in this process: every case, every verdict."""

import pytest

from jax_passing import _native
from jax_passing.conformance import run
from jax_passing.conformance.exchanges.exchange import Played
from jax_passing.conformance.exchanges.model import Limits, State
from jax_passing.protocol.packet import LANES_AT_MTU_1500, LANES_MAX

FARTHEST = (1 << 31) - 1  # a reach in which all sequences are


class SlotPool:
    """One pool plays all exchanges, so what one leaves behind must not matter to the next."""

    name = "C++ slot pool"

    def __init__(self, reach=None, lanes=LANES_AT_MTU_1500):
        self.limits = Limits(lanes_per_chunk=lanes, reach=reach)
        self._pool = _native.SlotPool(slot_count=64)

    def play(self, exchange):
        addresses = {address: ("192.0.2.1", 1024 + index) for index, address in enumerate(exchange.addresses())}
        pool = self._pool
        for job in exchange.jobs:
            parent = job.parent
            pool.add_job(
                job=job.number,
                epoch=job.epoch,
                slot_first=job.slot_first,
                slot_count=job.slot_count,
                addresses=[addresses[str(worker)] for worker in job.workers],
                parent=None
                if parent is None
                else (parent.job, parent.epoch, parent.slot_first, parent.worker, addresses[str(parent.address)]),
                lanes_per_chunk=self.limits.lanes_per_chunk,
                reach=FARTHEST if self.limits.reach is None else self.limits.reach,
            )
        jobs = {job.number: job for job in exchange.jobs}
        received = {}
        verdicts = []
        for step in exchange.steps:
            verdict, whom, number, worker, packet, bare_workers, bare = pool.on_packet(
                step.packet, addresses[step.source]
            )
            verdicts.append(verdict)
            if whom != "nobody":
                for index, address in enumerate(_destinations(jobs[number], whom, worker)):
                    received.setdefault(str(address), []).append(bare if bare_workers >> index & 1 else packet)
        states = {
            (slot, version): State(*pool.slot_version(slot, version))
            for job in exchange.jobs
            for slot in range(job.slot_first, job.slot_first + job.slot_count)
            for version in (0, 1)
        }
        for number in jobs:
            pool.remove_job(number)
        return Played(received, verdicts=verdicts, states=states)


def _destinations(job, whom, worker):
    if whom == "every_worker":
        return job.workers
    if whom == "worker":
        return [job.workers[worker]]
    return [job.parent.address]


SEEDS = 300
REACHES = pytest.mark.parametrize("reach", [None, 1024, 64], ids=["any sequence", "reach 1024", "reach 64"])


def failures(device, exchanges):
    outcomes = [run.outcome(device, exchange) for exchange in exchanges]
    assert sum(not one.not_applicable for one in outcomes) > 0.9 * len(outcomes)
    return {one.case.description: one.failure for one in outcomes if one.failure}


@REACHES
def test_cases(reach):
    device = SlotPool(reach)
    assert failures(device, run.cases(device.limits, seed=0, exchanges=0)) == {}


@pytest.mark.slow  # the model is in Python, and adds up six times as many lanes
def test_cases_of_long_packets():
    device = SlotPool(reach=1024, lanes=LANES_MAX)
    assert failures(device, run.cases(device.limits, seed=0, exchanges=0)) == {}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(50, SEEDS, 50))])
@REACHES
def test_random_exchanges(reach, seed):
    device = SlotPool(reach)
    assert failures(device, run.random_exchanges.exchanges(device.limits, seed, 50)) == {}
