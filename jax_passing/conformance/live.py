"""A live switch as a device under test: over UDP and its control connection, from one machine."""

from collections.abc import Callable

import msgspec

from jax_passing.conformance.devices import DeviceError
from jax_passing.conformance.exchange import NUMBERS, SLOT_COUNT, Exchange, Played
from jax_passing.conformance.live_job import LiveJob, RefusedError
from jax_passing.conformance.model import VERDICTS, Limits

STEPS_UNREAD = 32  # what comes out of so many steps fits into a socket's buffer
NO_JOB = 40_000  # a number that no switch has got to


class LiveSwitch:
    """Raises DeviceError or SwitchUnreachableError.

    The switch gives out its own numbers: packets are sent with those, and results expected with them.
    """

    def __init__(self, address: tuple[str, int]):
        self._address = address
        self._stranger = self._join(1)  # what it sends for others has a foreign source
        welcome = self._stranger.welcome
        self.name = "{}:{}".format(*address)
        self.limits = Limits(
            lanes_per_chunk=welcome.lanes_per_chunk,
            whole_chunks=welcome.whole_chunks,
            worker_limit=welcome.worker_limit,
            trees=False,
        )
        self._jobs: dict[str, LiveJob] = {}  # by the exchange's name of it

    def _join(self, workers: int) -> LiveJob:
        try:
            return LiveJob(self._address, workers)
        except RefusedError as error:
            raise DeviceError(f"it refuses a job of {workers} workers: {error}") from error

    def play(self, exchange: Exchange) -> Played:
        try:
            return self._play(exchange)
        except (OSError, msgspec.DecodeError) as error:
            raise DeviceError(f"it doesn't answer any more: {error}") from error

    def _play(self, exchange: Exchange) -> Played:
        slots = self._prepare(exchange)
        jobs = [self._stranger, *self._jobs.values()]
        for job in jobs:
            job.keep_alive()
            job.lossy, job.fences_passed = False, 0
        translate = self._translation(exchange, slots)
        counted = self._stranger.counters()
        received: dict[str, list[bytes]] = {address: [] for address in exchange.addresses()}
        previous = ""
        for count, step in enumerate(exchange.steps, 1):
            if previous not in ("", step.source):
                self._fence(previous, received)  # then the switch has dealt with what was sent from there
            job, worker = self._at(step.source)
            job.send(worker, translate(step.packet))
            previous = step.source
            if count % STEPS_UNREAD == 0 or count == len(exchange.steps):
                for address in (previous, *received):
                    self._fence(address, received)
        fences = sum(job.fences_passed for job in jobs)
        now = self._stranger.counters()
        counts = {name: now[name] - counted[name] - fences * (name == "resend") for name in VERDICTS if name in now}
        return Played(received, counts=None if any(job.lossy for job in jobs) else counts, translate=translate)

    def _prepare(self, exchange: Exchange) -> dict[str, int]:
        """Joins the jobs of the exchange unless they run. The first slot of each that it may use."""
        slots = {}
        for job in exchange.jobs:
            name, workers = str(job.workers[0])[0], len(job.workers)
            running = self._jobs.get(name)
            free = running.take_slots() if running is not None and running.workers == workers else None
            if free is None:
                if running is not None:
                    running.close()
                self._jobs[name] = self._join(workers)
                free = self._jobs[name].take_slots()
            assert free is not None
            slots[name] = free
        return slots

    def _at(self, address: str) -> tuple[LiveJob, int]:
        return (self._jobs[address[0]], int(address[1:])) if address[0] in self._jobs else (self._stranger, 0)

    def _fence(self, address: str, received: dict[str, list[bytes]]) -> None:
        job, worker = self._at(address)
        received[address] += job.fence(worker)

    def _translation(self, exchange: Exchange, slots: dict[str, int]) -> Callable[[bytes], bytes]:
        """From an exchange's numbers to this switch's."""
        names = {job.number: str(job.workers[0])[0] for job in exchange.jobs}
        taken = {job.welcome.job_id for job in (self._stranger, *self._jobs.values())}

        def translate(packet: bytes) -> bytes:
            if len(packet) < 12:
                return packet
            number, epoch, slot = (int.from_bytes(packet[at : at + 2]) for at in (4, 6, 10))
            name = names.get(number)
            if name is None:  # still no job's
                numbers = (NO_JOB + number if number in taken else number, epoch, slot)
            else:
                welcome = self._jobs[name].welcome
                _, own_epoch, first = NUMBERS[name]
                if first <= slot < first + SLOT_COUNT:
                    slot += slots[name] - first
                else:
                    slot = _outside(slot - first, welcome.slot_first, welcome.slot_count)
                numbers = (welcome.job_id, (epoch - own_epoch + welcome.epoch) % (1 << 16), slot)
            written = [number.to_bytes(2) for number in numbers]
            return packet[:4] + written[0] + written[1] + packet[8:10] + written[2] + packet[12:]

        return translate

    def close(self) -> None:
        for job in (self._stranger, *self._jobs.values()):
            job.close()


def _outside(offset: int, first: int, count: int) -> int:
    """A slot outside a partition: as far before or behind it as `offset` was, if the numbers allow."""
    slot = first + offset if offset < 0 else first + count + offset - SLOT_COUNT
    if 0 <= slot < 1 << 16:
        return slot
    return first - 1 if first > 0 else min(first + count, (1 << 16) - 1)
