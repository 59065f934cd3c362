"""A live switch under test: over UDP and its control connections, from one machine."""

import itertools
import time
from collections import Counter
from collections.abc import Collection
from contextlib import closing, suppress
from functools import partial

import msgspec

from jax_passing.config import address_text
from jax_passing.conformance.exchanges.differences import shown
from jax_passing.conformance.exchanges.exchange import SLOT_COUNT, Exchange, Played, SlotVersion
from jax_passing.conformance.exchanges.model import Job, Limits, State
from jax_passing.conformance.live import control_checks, fences, group_checks, key_checks
from jax_passing.conformance.live.group_checks import hear
from jax_passing.conformance.live.job import AS_PARENT, JOBS_MAX, LiveJob, TooLateError
from jax_passing.conformance.live.joining import JOIN_S, GroupAnswer, RefusedError, decline
from jax_passing.conformance.live.parent_role import ParentRole
from jax_passing.conformance.switch_under_test import Check, UntestableError
from jax_passing.errors import AuthenticationError
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.packet import RESULT
from jax_passing.protocol.verdicts import VERDICTS

STEPS_UNREAD = 32  # the packets that come out of these steps fit into a socket's buffer
QUIET_S = 1.0
GROUP_ATTEMPTS = 4  # a switch waits for 1.2 s until all have heard its group, which a busy machine may exceed
FIRST_JOIN_S = 10.0  # there is nobody to wait for, unless it has a parent that isn't there
SILENCE = "after all exchanges, nothing more comes"


def _workers(count: int) -> str:
    return "one worker" if count == 1 else f"{count} workers"


def _name(job: Job) -> str:
    return str(job.workers[0])[0]


class LiveSwitch:
    """Raises UntestableError or SwitchUnreachableError. With `parent_at` this machine is the switch's parent, there.

    The switch gives out its own numbers: packets are sent with those, and results expected with them.
    """

    def __init__(
        self, address: tuple[str, int], parent_at: tuple[str, int] | None = None, switch_key: bytes | None = None
    ):
        """`switch_key`: the switch's own, if it has one."""
        self.name = address_text(*address)
        self._address, self._key = address, switch_key
        self._jobs: dict[str, LiveJob] = {}  # by the exchange's name of it
        try:
            self._parent = ParentRole(parent_at, switch_key) if parent_at else None
        except OSError as error:
            raise UntestableError(f"can't listen as its parent: {error}") from error
        self._stranger = self._join(1, wait_s=FIRST_JOIN_S)  # what it sends for others has a foreign source
        welcome = self._stranger.welcome
        self.limits = Limits(
            lanes_per_chunk=welcome.lanes_per_chunk,
            whole_chunks=welcome.whole_chunks,
            worker_limit=welcome.worker_limit,
            trees=self._parent is not None,
            multicast=self._has_group(),
            bare=welcome.bare,
            reach=6 * welcome.slot_count if "too_far" in self._stranger.counters() else None,
            fresh_jobs=False,
        )

    def _has_group(self) -> bool:
        """Returns whether results can go to a group. If one is offered, but is of no use, a check says so."""
        self._group_offered, self._group_trouble = True, ""
        try:
            with closing(self._join(2, hear)) as job:
                self._group_offered = job.offer is not None
                return job.ends.group is not None
        except UntestableError as error:
            self._group_trouble = str(error)
            return False

    def _join(self, workers: int, answer: GroupAnswer = decline, name: str = "", wait_s: float = JOIN_S) -> LiveJob:
        attempt = partial(LiveJob, self._address, workers, self._parent, answer, name, wait_s, self._key)
        try:
            for _ in range(GROUP_ATTEMPTS - 1):
                with suppress(TooLateError):
                    return attempt()
            return attempt()
        except AuthenticationError as error:
            if self._key is None:
                raise UntestableError("it has a key: give the file with it by --key-file") from error
            raise UntestableError("it has another key than the one in --key-file, or none") from error
        except RefusedError as error:
            text = f"it refuses a job of {_workers(workers)} (the test has up to {JOBS_MAX} jobs at once): {error}"
            if self._parent is None and "parent" in str(error):
                text = f"it has a parent, which isn't there: {AS_PARENT}. The switch says: {error}"
            raise UntestableError(text) from error

    def _open_jobs(self) -> list[LiveJob]:
        return [self._stranger, *self._jobs.values()]

    def play(self, exchange: Exchange) -> Played:
        try:
            slots = self._prepare(exchange)
            jobs = self._open_jobs()
            repeated = sum(job.fences.repeated for job in jobs)
            counted = Counter(self._stranger.counters())
            received = self._send(exchange, slots)
            now = self._stranger.counters()
            states = self._states(exchange, slots)
        except (OSError, msgspec.DecodeError) as error:
            raise UntestableError(f"it doesn't answer any more: {error}") from error
        for job in jobs:
            counted += job.fences.verdicts
        counts = {name: now[name] - counted[name] for name in VERDICTS if name in now}
        not_compared = {}
        if sum(job.fences.repeated for job in jobs) > repeated:
            counts = {}
            not_compared["how often it came to each verdict"] = "an answer was late or lost, and asked for again"
        for verdict in {step.verdict for step in exchange.steps} - now.keys():
            not_compared[f"how often it came to {verdict}"] = "it doesn't count that"
        for unknown in (state for state in states.values() if isinstance(state, str)):
            not_compared["what its slots hold"] = unknown
        return Played(
            received,
            strays=[stray for job in jobs if (stray := job.ends.take_stray())],
            counts=counts,
            states={slot_version: state for slot_version, state in states.items() if isinstance(state, State)},
            not_compared=not_compared,
            translate=lambda packet, to: self._translated(packet, exchange, slots, upwards=to == ("P",)),
        )

    def _prepare(self, exchange: Exchange) -> dict[str, int]:
        """Joins the jobs of the exchange unless they run. Returns the first slot of each that it may use."""
        slots = {}
        for job in exchange.jobs:
            name, workers = _name(job), len(job.workers)
            running = self._jobs.get(name)
            same = running is not None and (running.workers, running.ends.group is None) == (workers, job.group is None)
            free = running.take_slots() if running is not None and same else None
            if free is None:
                if running is not None:
                    running.close()
                self._jobs[name] = self._join(workers, decline if job.group is None else hear)
                free = self._jobs[name].take_slots()
            assert free is not None
            slots[name] = free
        for live in self._open_jobs():
            live.keep_alive()
            live.fences.verdicts.clear()
        return slots

    def _send(self, exchange: Exchange, slots: dict[str, int]) -> dict[str, list[bytes]]:
        """Returns what comes to each address."""
        received: dict[str, list[bytes]] = {address: [] for address in exchange.addresses()}
        previous, unfenced = "", 0
        for count, step in enumerate(exchange.steps, 1):
            if previous not in ("", step.source) or unfenced == fences.BURST:
                self._fence(previous, received)  # then the switch has dealt with what was sent from there
                unfenced = 0
            unfenced += 1
            # A result is the parent's, unless that has no such job.
            upwards = step.packet[2:3] == bytes([RESULT])
            packet = self._translated(step.packet, exchange, slots, upwards)
            if step.source == "P":
                job = self._jobs["A"]
                assert job.ends.parent is not None
                job.ends.parent.udp.send(packet)
            else:
                job, worker = self._at(step.source)
                job.send(worker, packet)
            if step.verdict in ("complete", "forwarded", "answered"):
                job.complete(packet)
            previous = step.source
            if count % STEPS_UNREAD == 0 or count == len(exchange.steps):
                for address in (previous, *received):
                    self._fence(address, received)
        return received

    def _states(self, exchange: Exchange, slots: dict[str, int]) -> dict[SlotVersion, State | str]:
        """Asks for the slot versions that packets were sent to, no others: a question takes longer than a packet."""
        addressed = {(int.from_bytes(step.packet[10:12]), version) for step in exchange.steps for version in (0, 1)}
        return {
            (slot, version): self._jobs[_name(job)].state(slots[_name(job)] + slot - job.slot_first, version)
            for job in exchange.jobs
            for slot, version in addressed
            if 0 <= slot - job.slot_first < SLOT_COUNT
        }

    def _at(self, address: str) -> tuple[LiveJob, int]:
        return (self._jobs[address[0]], int(address[1:])) if address[0] in self._jobs else (self._stranger, 0)

    def _fence(self, address: str, received: dict[str, list[bytes]]) -> None:
        if address == "P" or address.endswith("*"):
            name = "A" if address == "P" else address[0]
            job = self._jobs[name]
            everybody = ["P"] * (job.ends.parent is not None)
            workers = [f"{name}{worker}" for worker in range(job.workers)]
            everybody += workers if job.ends.group is None else [f"{name}*"]
            for other, packets in zip(everybody, job.fences.everywhere(), strict=True):
                received[other] += packets
        else:
            job, worker = self._at(address)
            received[address] += job.fences.at_worker(worker)

    def _translated(self, packet: bytes, exchange: Exchange, slots: dict[str, int], upwards: bool) -> bytes:
        """Translates an exchange's numbers to this switch's; `upwards`: to those at its parent, if they are meant."""
        if len(packet) < 12:
            return packet
        number, epoch, slot = (int.from_bytes(packet[at : at + 2]) for at in (4, 6, 10))
        spaces = [(job, self._jobs[_name(job)]) for job in exchange.jobs]
        for job, live in spaces:
            if upwards and job.parent is not None and live.ends.parent is not None and job.parent.job == number:
                there = live.ends.parent.numbers
                epoch += there.epoch - job.parent.epoch
                slot = _slot(slot - job.parent.slot_first, slots[_name(job)], live.welcome, there.slot_first)
                return _renumbered(packet, there.job, epoch, slot)
        for job, live in spaces:
            if job.number == number:
                welcome = live.welcome
                epoch += welcome.epoch - job.epoch
                slot = _slot(slot - job.slot_first, slots[_name(job)], welcome, welcome.slot_first)
                return _renumbered(packet, welcome.job_id, epoch, slot)
        jobs = self._open_jobs()
        taken = {live.welcome.job_id for live in jobs}
        taken |= {live.ends.parent.numbers.job for live in jobs if live.ends.parent is not None}
        return _renumbered(packet, nobodys(number, taken), epoch, slot)

    def checks(self) -> list[Check]:
        def silence() -> str:
            found = self._unexpected()
            for job in self._jobs.values():  # the other checks have jobs of their own
                job.close()
            self._jobs.clear()
            return found

        return [
            Check("silence", SILENCE, silence),
            *group_checks.checks(self._join, self._stranger, self._group_offered, self._group_trouble),
            *control_checks.checks(self._join),
            *(() if self._key is None else key_checks.checks(self._join, self._address, self._key)),
        ]

    def _unexpected(self) -> str:
        """Describes what comes in a while in which nothing must come; empty if nothing does."""
        jobs = self._open_jobs()
        until = time.monotonic() + QUIET_S
        try:
            while time.monotonic() < until:
                for job in jobs:
                    job.keep_alive()
                time.sleep(QUIET_S / 20)
            for job in jobs:
                if packet := job.fences.unread():
                    return f"within {QUIET_S:g} s came {shown(packet)}"
                if stray := job.ends.take_stray():
                    return f"within {QUIET_S:g} s came {stray}"
        except OSError as error:
            raise UntestableError(f"it doesn't answer any more: {error}") from error
        return ""

    def close(self) -> None:
        for job in self._open_jobs():
            job.close()
        if self._parent is not None:
            self._parent.close()


def _renumbered(packet: bytes, job: int, epoch: int, slot: int) -> bytes:
    numbers = job.to_bytes(2) + (epoch % (1 << 16)).to_bytes(2)
    return packet[:4] + numbers + packet[8:10] + slot.to_bytes(2) + packet[12:]


def nobodys(number: int, taken: Collection[int]) -> int:
    """Returns a job's number like this one that no job here has."""
    return next(other for other in itertools.chain(range(number, 1 << 16), range(number)) if other not in taken)


def _slot(offset: int, group: int, welcome: messages.Welcome, first: int) -> int:
    """Returns a slot in a partition from `first` on: in the exchange's group, or as far outside as `offset` was."""
    if 0 <= offset < SLOT_COUNT:
        return first + group - welcome.slot_first + offset
    slot = first + (offset if offset < 0 else welcome.slot_count + offset - SLOT_COUNT)
    if 0 <= slot < 1 << 16:
        return slot
    return first - 1 if first > 0 else min(first + welcome.slot_count, (1 << 16) - 1)
