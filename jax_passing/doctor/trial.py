"""A small job at a switch, both of whose workers are this process, examines the way there by the protocol itself.

It takes some of the switch's slots for a second or two, and leaves other jobs alone.
"""

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import msgspec

from jax_passing import job_names
from jax_passing.config import address_text
from jax_passing.conformance.live.data_socket import GroupSocket
from jax_passing.conformance.live.group_checks import hear
from jax_passing.conformance.live.joining import (
    ANSWER_S,
    GroupAnswer,
    Joined,
    RefusedError,
    WorkerEnd,
    at_plane,
    join,
    leave,
)
from jax_passing.conformance.switch_under_test import UntestableError
from jax_passing.errors import AuthenticationError, PassingError, SwitchUnreachableError
from jax_passing.host.control.control_connection import ControlConnection
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.alike import protocol_difference
from jax_passing.protocol.packet import (
    CONTRIBUTION,
    HEADER,
    LANES_AT_MTU_1500,
    RESULT,
    TAG_BYTES,
    MalformedError,
    Packet,
    decode,
)

JOIN_S = 5.0
TRIES = 4  # of one chunk
CHUNKS = 32  # of each length
WORKERS = 2


@dataclass
class Passed:
    """Chunks of one length that were tried. `fragments`: IP may cut their packets. `times_s`: of those whose sum came
    back, from the contributions to it."""

    lanes: int
    packet_bytes: int
    fragments: bool = False
    tried: int = 0
    lost: int = 0
    times_s: list[float] = field(default_factory=list)
    trouble: str = ""


@dataclass
class Seen:
    """The results of a trial. An empty text says that nothing is wrong.

    Attributes:
      unreachable: why no switch answers.
      locked: which key is missing or wrong.
      refused: why the switch didn't take the trial.
      broken: any other failure of it.
      connect_s: how long it took to hear the switch's greeting.
      data: the addresses of the planes that the trial's job had, in order: packets go there.
      lanes: of the longest packets.
      passed: the shortest packets, then the longest, then these in fragments if they didn't pass without.
      passed_later: the shortest packets to each plane but the first, if that one has answered.
      offers_group: whether there is a multicast group.
      deaf: why that isn't heard.
    """

    unreachable: str = ""
    locked: str = ""
    refused: str = ""
    broken: str = ""
    connect_s: float = 0.0
    data: Sequence[str] = ()
    lanes: int = LANES_AT_MTU_1500
    passed: list[Passed] = field(default_factory=list)
    passed_later: list[Passed] = field(default_factory=list)
    offers_group: bool = False
    deaf: str = ""


def look(address: tuple[str, int], key: bytes | None, job: str) -> Seen:
    """Tries the switch at this address. `key`: of `job`, if there is one."""
    seen = Seen()
    began = time.monotonic()
    name = job_names.of_doctor(job, uuid.uuid4().hex[:12])
    try:
        control = ControlConnection(address, key=key, job=name)
        seen.connect_s = time.monotonic() - began
        control.close()
        hello = control.hello
        if hello.protocol_version != messages.PROTOCOL_VERSION:
            version = messages.PROTOCOL_VERSION
            who = address_text(*address), hello.protocol_version, "this host", version, "this host"
            seen.unreachable = protocol_difference(*who)
            return seen
    except SwitchUnreachableError as error:
        seen.unreachable = str(error)
        return seen
    except AuthenticationError as error:
        seen.locked = str(error)
        return seen
    try:
        with _joined(address, name, key, partial(_note_offer, seen), hello.planes) as joined:
            _try_packets(joined, seen)
            _try_other_planes(joined, seen)
        if seen.offers_group:
            with _joined(address, name + "g", key, partial(_listen, seen)) as joined:
                if not seen.deaf and not joined.welcome.multicast:
                    seen.deaf = "the switch learned too late that it is heard"
    except RefusedError as error:
        seen.refused = str(error)
    except (OSError, msgspec.DecodeError, PassingError, UntestableError) as error:
        seen.broken = str(error)
    return seen


def _note_offer(seen: Seen, workers: Sequence[WorkerEnd], offers: Sequence[messages.GroupOffer]) -> None:
    seen.offers_group = True
    for worker, offer in zip(workers, offers, strict=True):
        worker.control.send(messages.GroupReady(offer.nonce, "jax-passing doctor takes these results one by one"))


def _listen(seen: Seen, workers: Sequence[WorkerEnd], offers: Sequence[messages.GroupOffer]) -> GroupSocket | None:
    try:
        return hear(workers, offers)
    except (OSError, UntestableError) as error:
        seen.deaf = str(error)
        return None  # the switch notices, and sends results to each


@contextmanager
def _joined(
    address: tuple[str, int], name: str, key: bytes | None, answer: GroupAnswer, planes: int = 1
) -> Iterator[Joined]:
    workers: list[WorkerEnd] = []
    group: GroupSocket | None = None
    try:
        for _ in range(WORKERS):
            workers.append(WorkerEnd(address, name, key))
        joined = join(workers, name, answer, JOIN_S, planes)
        group = joined.group
        yield joined
        leave(workers)
    finally:
        for worker in workers:
            worker.close()
        if group is not None:
            group.close()


def _try_packets(joined: Joined, seen: Seen) -> None:
    welcome = joined.welcome
    host, port = joined.workers[0].data_address
    seen.data = [address_text(host, port + plane) for plane in range(welcome.planes)]
    header_bytes = HEADER.size + (TAG_BYTES if joined.tags is not None else 0)
    seen.lanes = most = welcome.lanes_per_chunk
    position = 0
    for lanes, fragments in ((1, False), (most, False), (most, True)):
        if welcome.whole_chunks and lanes != most:
            continue
        for worker in joined.workers:
            worker.udp.let_fragments(fragments)
        passed = Passed(lanes, header_bytes + 4 * lanes, fragments)
        seen.passed.append(passed)
        position = _try_chunks(joined, position, passed)
        if (lanes == most) != bool(passed.trouble):
            return  # short ones are lost as well, or the longest pass


def _try_other_planes(joined: Joined, seen: Seen) -> None:
    """Sends the shortest packets to each port but the first."""
    shortest = seen.passed[0]
    if shortest.trouble:
        return  # as likely as not UDP to these is lost as well, and each would take seconds
    for plane in range(1, len(seen.data)):
        passed = Passed(shortest.lanes, shortest.packet_bytes)
        seen.passed_later.append(passed)
        try:
            for worker in joined.workers:
                worker.control.send(messages.Heartbeat())  # silent planes may take longer than our lease
            _try_chunks(at_plane(joined, plane), 0, passed)
        except OSError as error:
            passed.trouble = str(error)


def _try_chunks(joined: Joined, position: int, passed: Passed) -> int:
    """Tries chunks from this position on, until one is lost. Returns the next position."""
    for _ in range(min(CHUNKS, joined.welcome.slot_count)):
        _try_chunk(joined, position, passed)
        position += 1
        if passed.trouble:
            break
    return position


def _try_chunk(joined: Joined, position: int, passed: Passed) -> None:
    """Makes one sum. A resend asks for it again, as a host's does."""
    welcome, count = joined.welcome, joined.welcome.slot_count
    packets = [
        Packet(
            type=CONTRIBUTION,
            job=welcome.job_id,
            epoch=welcome.epoch,
            worker=number,
            slot=welcome.slot_first + position % count,
            version=position // count % 2,
            sequence=position,
            lanes=tuple((number + 1) * (lane + 1) for lane in range(passed.lanes)),
        ).encode()
        for number in range(WORKERS)
    ]
    wanted = tuple(sum(range(1, WORKERS + 1)) * (lane + 1) for lane in range(passed.lanes))
    waiting = dict(enumerate(joined.workers))
    passed.tried += 1
    for attempt in range(TRIES):
        sent = time.monotonic()
        for number in range(WORKERS) if attempt == 0 else list(waiting):
            with suppress(OSError):  # too long for the path, or the port is closed: nothing comes back
                joined.workers[number].udp.send(packets[number])
        if attempt == 0 and joined.tags is not None:
            joined.tags.complete(packets[0])
        until = time.monotonic() + ANSWER_S
        for number, worker in list(waiting.items()):
            if (problem := _await_result(worker, position, wanted, until)) is None:
                continue
            if problem:
                passed.trouble = problem
                return
            del waiting[number]
        if not waiting:
            passed.times_s.append(time.monotonic() - sent)
            return
        passed.lost += 1
    passed.trouble = f"no answer to {TRIES} packets of {passed.packet_bytes} bytes"


def _await_result(worker: WorkerEnd, sequence: int, wanted: tuple[int, ...], until: float) -> str | None:
    """Returns what is wrong with the result, "" if nothing is, and None if it doesn't come."""
    while True:
        try:
            result = decode(worker.udp.receive(until))
        except MalformedError as error:
            return f"a malformed packet came from the switch ({error})"
        except OSError:  # a timeout, or ICMP says that the port is closed
            return None
        if (result.type, result.sequence) == (RESULT, sequence):
            return "" if result.lanes == wanted else "the switch's sum of a chunk is wrong"
