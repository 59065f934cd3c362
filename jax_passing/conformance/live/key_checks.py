"""A switch with a key: forged packets change nothing, and a caller without a job's key doesn't join it."""

import socket
import ssl
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import BinaryIO

from jax_passing.conformance.exchanges.differences import shown
from jax_passing.conformance.live.job import Join, LiveJob
from jax_passing.conformance.live.joining import JOIN_S, WorkerEnd, join_request
from jax_passing.conformance.switch_under_test import Check, NotApplicableError
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol import keys, secure_channel
from jax_passing.protocol.packet import MAX, SUM, TAG_BYTES

SECTION = "key"
SEQUENCE, VERSION = 9, 1  # not far ahead of those of the fences
UDP_PORT = 1024  # of those who mustn't join


class _Chunk:
    """Worker 0 of two has contributed to it, worker 1 is about to.

    Attributes:
      sent: the packet that worker 1 is going to send, without its tag.
      right: the same, with its tag.
      position: of the chunk.
      tags: of the job.
    """

    def __init__(self, job: LiveJob):
        if job.tags is None:
            raise NotApplicableError("its packets have no tags")
        self._job, self.tags = job, job.tags
        self.sent = replace(job.unused(job.welcome, SEQUENCE, VERSION), worker=1)
        self.position = self.tags.position(SEQUENCE)
        job.contribute(job.welcome, SEQUENCE, VERSION)
        self.right = self.tags.contributions[1].sealed(self.sent, self.position)

    def with_right_tag(self, **changes: int) -> bytes:
        """Makes another packet, with the tag of the right one."""
        return replace(self.sent, tag=self.right[-TAG_BYTES:], **changes).encode()  # type: ignore[arg-type]  # numbers

    def judge(self, forged: Iterable[bytes]) -> str:
        """Sends these from worker 1's socket. Describes the switch's mistake with them, if any."""
        job, packets = self._job, list(forged)
        counted, held = job.counters().get("forged", 0), job.state(self.sent.slot, VERSION)
        for packet in packets:
            job.ends.workers[1].udp.send_raw(packet)
        if came := job.fences.at_worker(1):
            return f"one of {len(packets)} forged packets is answered with {shown(came[0])}"
        if (more := job.counters().get("forged", 0) - counted) != len(packets):
            return f"of {len(packets)} forged packets it counts {more} as forged"
        if (now := job.state(self.sent.slot, VERSION)) != held:
            return f"forged packets have changed what a slot holds from {held} to {now}"
        came_then = job.contribute(job.welcome, SEQUENCE, VERSION, workers=2) + job.answer(SEQUENCE, VERSION)
        return self.problem_with_result(came_then)

    def problem_with_result(self, came: Sequence[str]) -> str:
        """`came`: the packets that came to anybody after the sum was complete."""
        right = shown(self._job.fences.result(self.sent))
        return "" if right in came else f"after forged packets came {came}, but not {right}"


def checks(join: Join, address: tuple[str, int], switch_key: bytes) -> list[Check]:
    def without_a_tag() -> str:
        with closing(join(2)) as job:
            chunk = _Chunk(job)
            return chunk.judge([chunk.sent.encode()])

    def guessed() -> str:
        with closing(join(2)) as job:
            chunk = _Chunk(job)
            return chunk.judge(
                replace(chunk.sent, tag=bytes([byte]) * TAG_BYTES).encode() for byte in range(0, 256, 17)
            )

    def of_others() -> str:
        name = _new_name()
        with closing(join(2, name=name)) as before, closing(join(2)) as other:
            tags = [each.tags for each in (before, other) if each.tags is not None]
        with closing(join(2, name=name)) as job:
            chunk = _Chunk(job)
            known = [chunk.tags.contributions[0], chunk.tags.results]
            known += [key for each in tags for key in (*each.contributions, each.results)]
            return chunk.judge(key.sealed(chunk.sent, chunk.position) for key in known)

    def of_another_wrap() -> str:
        with closing(join(2)) as job:
            chunk = _Chunk(job)
            positions = ((chunk.position + ahead) % (1 << 64) for ahead in (1 << 32, -1 << 32))
            return chunk.judge(chunk.tags.contributions[1].sealed(chunk.sent, position) for position in positions)

    def changed_header() -> str:
        with closing(join(2)) as job:
            chunk = _Chunk(job)
            sent = chunk.sent
            return chunk.judge(
                [
                    *(chunk.with_right_tag(flags=flags) for flags in range(1, 8)),
                    *(chunk.with_right_tag(sequence=sent.sequence ^ 1 << bit) for bit in range(32)),
                    chunk.with_right_tag(slot=sent.slot - 1),
                    chunk.with_right_tag(version=1 - sent.version),
                    chunk.with_right_tag(lane_format=SUM + MAX - sent.lane_format),
                ]
            )

    def changed_lanes() -> str:
        with closing(join(2)) as job:
            chunk = _Chunk(job)
            behind_header = range(8 * (len(chunk.right) - TAG_BYTES - 4), 8 * len(chunk.right))  # of the last lane on
            return chunk.judge(_with_bit_changed(chunk.right, bit) for bit in behind_header)

    def from_the_parent() -> str:
        with closing(join(2)) as job:
            chunk, parent = _Chunk(job), job.ends.parent
            if parent is None:
                raise NotApplicableError("its jobs have no parent")
            job.contribute(job.welcome, SEQUENCE, VERSION, workers=2)
            result, counted = job.parents_result(parent, SEQUENCE, VERSION), job.counters().get("forged", 0)
            parent.udp.send_raw(result.encode())
            for key in (parent.contributions, chunk.tags.results):
                parent.udp.send_raw(key.sealed(result, chunk.position))
            if not chunk.problem_with_result(job.everything()):
                return "it takes one of three forged results"
            if (more := job.counters().get("forged", 0) - counted) != 3:
                return f"of three forged results it counts {more} as forged"
            return chunk.problem_with_result(job.answer(SEQUENCE, VERSION))

    def _next(lines: BinaryIO) -> messages.FromSwitch:
        if not (line := lines.readline()):
            raise ConnectionError("the connection was closed")
        return messages.decode_from_switch(line)

    def in_the_clear() -> str:
        name = _new_name()
        with socket.create_connection(address, JOIN_S) as connection, connection.makefile("rb") as lines:
            hello = _next(lines)
            if not isinstance(hello, messages.Hello) or not hello.secured:
                return f"its greeting doesn't say that it is secured: {hello}"
            connection.sendall(messages.encode(_join(name, hello.instance)))
            said = _next(lines)
        return _unless_refused(said, name)

    def without_the_key() -> str:
        name = _new_name()
        stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        stranger.check_hostname = False
        for context in (secure_channel.context(keys.new_key(), server_side=False), stranger):
            context.verify_mode = ssl.CERT_NONE  # else it would end at our side
            with socket.create_connection(address, JOIN_S) as connection:
                server_name = secure_channel.server_name(name)
                with suppress(OSError), context.wrap_socket(connection, server_hostname=server_name) as channel:
                    channel.sendall(messages.encode(_join(name, "")))
                    if said := channel.recv(1024):
                        return f"to somebody who doesn't know the job's key it says {said[:80]!r}"
        return _unless_it_begins(name)

    def another_jobs_key() -> str:
        own, name = _new_name(), _new_name()
        with closing(WorkerEnd(address, own, keys.job_key(switch_key, own))) as worker:
            worker.control.send(_join(name, worker.instance))
            said = worker.control.receive(time.monotonic() + JOIN_S)
        return _unless_refused(said, name)

    def _unless_refused(said: messages.FromSwitch, name: str) -> str:
        if not isinstance(said, messages.Refused):
            return f"it answers {said}, not Refused"
        return _unless_it_begins(name)

    def _unless_it_begins(name: str) -> str:
        """Joins the job: it must begin without those that were turned away."""
        join(1, name=name).close()
        return ""

    found = {
        "a packet without a tag is forged": without_a_tag,
        "packets with tags that somebody has guessed are forged": guessed,
        "packets with the tag of another worker, job or epoch, or of results, are forged": of_others,
        "packets with the tag of the chunk one wrap of the sequence before or after are forged": of_another_wrap,
        "a header of which a field was changed is forged": changed_header,
        "a packet of which a bit of the lanes or of the tag was changed is forged": changed_lanes,
        "results of a parent without a tag, or with that of others, are forged": from_the_parent,
        "a join in the clear is refused": in_the_clear,
        "a caller without the job's key doesn't get through the handshake": without_the_key,
        "the key of one job opens no other": another_jobs_key,
    }
    return [Check(SECTION, description, find) for description, find in found.items()]


def _new_name() -> str:
    return f"conformance {uuid.uuid4().hex}"


def _join(name: str, instance: str) -> messages.Join:
    return join_request(name, 0, 1, instance, UDP_PORT, JOIN_S)


def _with_bit_changed(packet: bytes, bit: int) -> bytes:
    byte, shift = divmod(bit, 8)
    return packet[:byte] + bytes([packet[byte] ^ 1 << shift]) + packet[byte + 1 :]
