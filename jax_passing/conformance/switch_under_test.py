"""Anything that plays an exchange can be tested: a switch, or part of one.

Here it is the C++ slot pool in this process; live/suite.py has the live switches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from jax_passing import _native
from jax_passing.conformance.exchanges.exchange import Exchange, Played
from jax_passing.conformance.exchanges.model import Address, Job, Limits, State


class SwitchUnderTest(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def limits(self) -> Limits: ...

    def play(self, exchange: Exchange) -> Played:
        """Sends the packets of an applicable exchange. Raises UntestableError if the switch can't be used any more."""

    def checks(self) -> Sequence["Check"]:
        """Returns the checks that come after all exchanges, and that no exchange could make."""

    def close(self) -> None: ...


class UntestableError(Exception):
    """The switch under test is gone, or does too little to be tested."""


class NotApplicableError(Exception):
    """A check can't be made here; the text says why."""


@dataclass(frozen=True)
class Check:
    """A check whose `find` says what is wrong, or nothing. It raises UntestableError or NotApplicableError."""

    section: str
    description: str
    find: Callable[[], str]


FARTHEST = (1 << 31) - 1  # a reach in which all sequences are


class SlotPool:
    """The C++ slot pool in this process: no sockets, every verdict known.

    It is one pool for all exchanges, so what one leaves behind must not matter to the next.
    """

    name = "C++ slot pool"

    def __init__(self, reach: int | None = None) -> None:
        self.limits = Limits(reach=reach)
        self._pool = _native.SlotPool(slot_count=64)

    def play(self, exchange: Exchange) -> Played:
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
                reach=FARTHEST if self.limits.reach is None else self.limits.reach,
            )
        jobs = {job.number: job for job in exchange.jobs}
        received: dict[str, list[bytes]] = {}
        verdicts = []
        for step in exchange.steps:
            verdict, whom, number, worker, packet = pool.on_packet(step.packet, addresses[step.source])
            verdicts.append(verdict)
            if whom != "nobody":
                for address in _destinations(jobs[number], whom, worker):
                    received.setdefault(str(address), []).append(packet)
        states = {
            (slot, version): State(*pool.slot_version(slot, version))
            for job in exchange.jobs
            for slot in range(job.slot_first, job.slot_first + job.slot_count)
            for version in (0, 1)
        }
        for number in jobs:
            pool.remove_job(number)
        return Played(received, verdicts=verdicts, states=states)

    def checks(self) -> Sequence[Check]:
        return ()

    def close(self) -> None:
        pass


def _destinations(job: Job, whom: str, worker: int) -> Sequence[Address]:
    if whom == "every_worker":
        return job.workers
    if whom == "worker":
        return [job.workers[worker]]
    assert job.parent is not None
    return [job.parent.address]
