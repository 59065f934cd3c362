"""Packet exchanges from a seed: mostly what workers send, with all that can go wrong. The model gives the answers."""

import random
from dataclasses import replace

from jax_passing.conformance.exchanges.exchange import STRANGER, Exchange, Step, answered_by_model, jobs_of
from jax_passing.conformance.exchanges.model import Job, Limits
from jax_passing.protocol.packet import CONTRIBUTION, EVERY_WORKER, MAX, NO_RESULT, PROBE, RESULT, SUM, Packet

WORD = 1 << 32
SEQUENCE_AT = range(12, 16)
# Sums that wrap, maxima of both signs, and what looks like one of them.
LANES = (0, 1, 2, WORD - 1, WORD - 2, WORD // 2, WORD // 2 - 1, WORD // 2 + 1)
BASES = (0, 7, WORD - 3, WORD // 2 - 3, WORD // 2, WORD - WORD // 2 - 2)
LATE = (1, 1, 2, WORD // 2 - 1, WORD // 2, WORD // 2 + 1)
# For a switch that drops what is too far ahead. The bound depends on how far the job is: these are far enough anyhow.
BASES_IN_REACH = (0, 7, WORD - 3)
LATE_IN_REACH = (1, 1, 2, WORD // 4, WORD - WORD // 4, WORD - WORD // 4 - 1)


def exchange(seed: int, limits: Limits, steps: int = 200) -> Exchange:
    """Makes the same exchange for the same arguments."""
    made = _Maker(random.Random(seed), limits)
    packets = tuple(made.step() for _ in range(steps))
    unanswered = Exchange("random", f"seed {seed}, {made.title}", made.jobs, packets, chunks="exact")
    return answered_by_model(unanswered, limits)


def exchanges(limits: Limits, seed: int, count: int) -> list[Exchange]:
    """Makes `count` exchanges, of seeds from `seed` on."""
    return [exchange(number, limits) for number in range(seed, seed + count)]


class _Maker:
    def __init__(self, rng: random.Random, limits: Limits):
        self._rng, self._limits = rng, limits
        # Half a circle apart: the sequence of one slot was behind, and lies ahead as soon as the other one is complete.
        opposite = limits.reach is not None and limits.fresh_jobs and rng.random() < 0.5
        workers = rng.choice([1, 2, 3] if opposite else [1, 2, 2, 3, 3, 4, 7, limits.worker_limit])
        tree = rng.random() < 0.4 if limits.trees is None else limits.trees
        group = limits.multicast and workers > 1 and rng.random() < 0.3
        jobs = f"A{workers}" + "*" * group + "^" * tree
        if rng.random() < 0.3 and limits.trees is not True:  # B has no parent
            jobs += " B2"
        self.jobs = jobs_of(jobs)
        self.title = f"jobs {jobs}"
        base = rng.choice([*BASES, rng.randrange(WORD)] if limits.reach is None else BASES_IN_REACH)
        self._bases = [base, base + opposite * (WORD // 2 - rng.randrange(3))]  # of the two slots that are used
        self._any_sequence = limits.reach is None or limits.fresh_jobs
        self._format = rng.choice([SUM, SUM, MAX])
        self._count = (
            limits.lanes_per_chunk if limits.whole_chunks else rng.choice([1, 2, 3, 8, limits.lanes_per_chunk])
        )
        self._age = 0  # sequences go on slowly
        self._sent: list[Step] = []

    def step(self) -> Step:
        rng = self._rng
        # Slots complete, and the next sequence starts, about as fast as all workers have sent something.
        self._age += rng.random() < 1 / (4 * len(self.jobs[0].workers))
        if self._sent and rng.random() < 0.1:  # the network duplicated, or delayed, a packet
            return rng.choice(self._sent[-50:])
        job = rng.choice(self.jobs)
        if job.parent is not None and rng.random() < 0.3:
            step = self._from_parent(job)
        else:
            worker = rng.randrange(len(job.workers))
            slot = rng.randrange(2)
            packet = replace(self._content(slot), job=job.number, epoch=job.epoch, worker=worker)
            step = self._sent_by(job.workers[worker], replace(packet, slot=job.slot_first + slot))
        self._sent.append(step)
        return step

    def _content(self, slot: int) -> Packet:
        rng, limits = self._rng, self._limits
        lane_format, count = self._format, self._count
        if rng.random() < 0.03:
            lane_format = SUM + MAX - lane_format
        if rng.random() < 0.03:
            count = rng.randint(1, limits.lanes_per_chunk)
        late = rng.choice(self._lags()) if rng.random() < 0.05 else 0
        packet = Packet(
            type=CONTRIBUTION,
            flags=rng.choice([0, 0, 0, 1, 2, 4, rng.randrange(8)]),
            sequence=(self._bases[slot] + self._age - late) % WORD,
            version=rng.randrange(2),
            lane_format=lane_format,
            lanes=tuple(rng.choice(LANES) if rng.random() < 0.3 else rng.randrange(WORD) for _ in range(count)),
        )
        may_be_bare = limits.bare and lane_format == SUM
        if may_be_bare and rng.random() < 0.3:
            packet = replace(packet, flags=packet.flags | NO_RESULT)
        return packet.without_lanes() if may_be_bare and rng.random() < 0.3 else packet

    def _lags(self) -> list[int]:
        """Returns by how much, modulo 2^32, a sequence may be older than it should be."""
        reach, any_lag = self._limits.reach, self._rng.randrange(WORD)
        if reach is None:
            return [*LATE, any_lag]
        if not self._limits.fresh_jobs:
            return list(LATE_IN_REACH)
        return [*LATE_IN_REACH, *LATE, WORD - reach, WORD - reach - 1, any_lag]

    def _from_parent(self, job: Job) -> Step:
        parent = job.parent
        assert parent is not None
        slot = self._rng.randrange(2)
        content = replace(self._content(slot), type=RESULT, worker=EVERY_WORKER, job=parent.job, epoch=parent.epoch)
        return self._sent_by(parent.address, replace(content, slot=parent.slot_first + slot))

    def _sent_by(self, address: object, packet: Packet) -> Step:
        """Makes the step as it should be, or with one thing wrong."""
        rng = self._rng
        wrong = rng.random() < 0.12
        kind = rng.randrange(6) if wrong else None
        if kind == 0:
            address = rng.choice([STRANGER, *(worker for job in self.jobs for worker in job.workers)])
        elif kind == 1:
            packet = replace(packet, type=rng.choice([CONTRIBUTION, RESULT, PROBE]))
        data = packet.encode()
        if kind == 2:
            at = rng.choice([4, 6, 8, 10])  # job, epoch, worker, slot
            value = rng.choice([0, 1, 2, len(self.jobs[0].workers), 63, 64, EVERY_WORKER, rng.randrange(1 << 16)])
            data = data[:at] + value.to_bytes(2) + data[at + 2 :]
        elif kind == 3:
            at = rng.choice([at for at in range(20) if self._any_sequence or at not in SEQUENCE_AT])  # of the header
            data = data[:at] + bytes([rng.choice([0, 1, 2, 3, 4, 8, 255, rng.randrange(256)])]) + data[at + 1 :]
        elif kind == 4:
            data = data[: rng.randrange(len(data))]
        elif kind == 5:
            data += bytes(rng.choice([1, 3, 4, 8]))
        return Step(str(address), data, "")
