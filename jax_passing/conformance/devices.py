"""What can be tested: anything that plays an exchange. Here the C++ slot pool in this process; live.py has the rest."""

from typing import Protocol

from jax_passing import _native
from jax_passing.conformance.exchange import Exchange, Played
from jax_passing.conformance.model import Limits


class Device(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def limits(self) -> Limits: ...

    def play(self, exchange: Exchange) -> Played:
        """Sends the packets of an applicable exchange. Raises DeviceError if the device can't be used any more."""

    def close(self) -> None: ...


class DeviceError(Exception):
    """The device under test is gone, or does too little to be tested."""


class SlotPool:
    """The C++ slot pool in this process: no sockets, every verdict known."""

    name = "C++ slot pool"
    limits = Limits(trees=hasattr(_native.SlotPool, "parent"))

    def play(self, exchange: Exchange) -> Played:
        addresses = {address: ("192.0.2.1", 1024 + index) for index, address in enumerate(exchange.addresses())}
        pool = _native.SlotPool(slot_count=64)
        for job in exchange.jobs:
            pool.add_job(
                job=job.number,
                epoch=job.epoch,
                slot_first=job.slot_first,
                slot_count=job.slot_count,
                addresses=[addresses[str(worker)] for worker in job.workers],
            )
        workers = {job.number: [str(worker) for worker in job.workers] for job in exchange.jobs}
        received: dict[str, list[bytes]] = {}
        verdicts = []
        for step in exchange.steps:
            verdict, job_number, worker, result = pool.on_packet(step.packet, addresses[step.source])
            verdicts.append(verdict)
            if result:
                everybody = workers[job_number]
                for address in everybody if verdict == "complete" else [everybody[worker]]:
                    received.setdefault(address, []).append(result)
        return Played(received, verdicts=verdicts)

    def close(self) -> None:
        pass
