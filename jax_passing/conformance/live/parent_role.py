"""This machine is the parent of the switch under test: its contributions arrive here, and results come from here."""

import itertools
import logging
import socket
import threading
import uuid
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from jax_passing.conformance.exchanges.exchange import PARENTS
from jax_passing.conformance.exchanges.model import Parent
from jax_passing.conformance.live.data_socket import DataSocket
from jax_passing.conformance.live.tags import PacketKey
from jax_passing.conformance.switch_under_test import UntestableError
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol import keys
from jax_passing.protocol.framing import Lines
from jax_passing.protocol.secure_channel import Channel

log = logging.getLogger("jax_passing.conformance")

LEASE_S = 30.0
SLOT_FIRST = 8192  # so that nobody takes our slots for the switch's own
WORKER = PARENTS["A"].worker

M = TypeVar("M", bound=messages.Message)


@dataclass(frozen=True)
class ParentEnd:
    """Our end of one job: its numbers here, the socket that the switch sends its sums to, and the keys of packets."""

    numbers: Parent
    udp: DataSocket
    contributions: PacketKey
    results: PacketKey


class ParentRole:
    """Listens at `address`; the switch has that as its parent. `switch_key`: that of both, if any. Raises OSError."""

    def __init__(self, address: tuple[str, int], switch_key: bytes | None = None):
        self._key = switch_key
        self._listener = socket.create_server(address)
        self._numbers = itertools.count(30_000)
        self._ends: dict[str, ParentEnd] = {}
        self._connections: list[_Connection] = []
        threading.Thread(target=self._accept, name="conformance-parent", daemon=True).start()

    def end_of(self, job: str) -> ParentEnd:
        """Returns our end of this job, which the switch has joined before it welcomed the job's workers.

        Raises UntestableError if it hasn't.
        """
        end = self._ends.get(job)
        if end is None:
            raise UntestableError("it doesn't join its parent, which is here: has it been started with --parent?")
        return end

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, (peer, *_) = self._listener.accept()
                self._connections.append(child := _Connection(connection, peer))
                threading.Thread(target=self._serve, args=(child,), daemon=True).start()

    def _serve(self, child: "_Connection") -> None:
        with closing(child), closing(DataSocket(child.own)) as udp:
            try:
                self._converse(child, udp)
            except (OSError, msgspec.DecodeError) as error:
                log.info("connection of the switch under test: %s", error)

    def _converse(self, child: "_Connection", udp: DataSocket) -> None:
        secured = self._key is not None
        hello = messages.Hello(
            messages.PROTOCOL_VERSION, "", udp.port, uuid.uuid4().hex, secured=secured, lease_s=LEASE_S
        )
        if self._key is not None:
            child.secure(self._key)
        child.send(hello)
        rack = child.expect(messages.RackJoin)
        udp.set_switch(rack.data_host or child.peer, rack.udp_port)
        joins = [child.expect(messages.RankJoin)]
        while len(joins) < joins[0].world_size:
            joins.append(child.expect(messages.RankJoin))
        least = joins[0]  # they all come from one switch
        ranks = tuple(sorted(join.rank for join in joins))
        tagged = least.tagged  # only where there is a key
        child.send(messages.Prepare(1, least.slot_count, least.lanes_per_chunk, least.whole_chunks, ranks, tagged))
        child.expect(messages.Prepared)
        number = next(self._numbers)
        slot_first = min(SLOT_FIRST, (1 << 16) - least.slot_count)
        numbers = Parent(job=number, epoch=number - 20_000, slot_first=slot_first, worker=WORKER, address="P")
        of_contributions, of_results = keys.new_key(), keys.new_key()
        # Before the workers are welcomed, and look for it.
        self._ends[rack.job] = ParentEnd(numbers, udp, PacketKey(of_contributions), PacketKey(of_results))
        child.send(
            messages.Welcome(
                job_id=numbers.job,
                epoch=numbers.epoch,
                slot_first=numbers.slot_first,
                slot_count=least.slot_count,
                worker=numbers.worker,
                lanes_per_chunk=least.lanes_per_chunk,
                whole_chunks=least.whole_chunks,
                bare=True,
                contribution_secret=of_contributions if tagged else None,
                result_secret=of_results if tagged else None,
            )
        )
        left: set[int] = set()
        while len(left) < len(joins):
            match child.receive():
                case messages.Heartbeat() as beat:
                    child.send(beat)
                case messages.Ask(id=number):  # who is missing elsewhere: nobody
                    child.send(messages.Answer(number, (), False, False))
                case messages.Left(ranks):
                    left.update(ranks)
        child.send(messages.Bye())

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for child in self._connections:
            child.hang_up()


class _Connection:
    """A switch's connection, message by message. Raises OSError or msgspec.DecodeError."""

    def __init__(self, connection: socket.socket, peer: str):
        self.own, self.peer = connection.getsockname()[0], peer
        self._connection = connection
        self._channel: Channel | None = None  # by TLS
        self._lines = Lines()

    def secure(self, switch_key: bytes) -> None:
        """Goes on by TLS. The switch begins with its handshake."""
        self._channel = Channel.callee(lambda job: keys.job_key(switch_key, job))
        while not self._channel.is_open:
            self._take()

    def _take(self) -> None:
        received = self._connection.recv(1 << 16)
        if not received:
            raise ConnectionError("it was closed")
        if self._channel is not None:
            received = self._channel.receive(received)
            self._connection.sendall(self._channel.take_outgoing())
        self._lines.add(received)

    def send(self, message: messages.Message) -> None:
        line = messages.encode(message)
        if self._channel is not None:
            self._channel.send(line)
            line = self._channel.take_outgoing()
        self._connection.sendall(line)

    def receive(self) -> messages.FromMember:
        while (line := self._lines.next(messages.RELAY_LINE_BYTES_MAX)) is None:
            self._take()
        return messages.decode_from_member(line)

    def expect(self, kind: type[M]) -> M:
        while isinstance(message := self.receive(), messages.Heartbeat):
            self.send(message)
        if not isinstance(message, kind):
            raise msgspec.DecodeError(f"{type(message).__name__} instead of {kind.__name__}")
        return message

    def hang_up(self) -> None:
        """Wakes the thread that receives."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()
