"""A tenant that takes all it can get of a switch: the third host of `tenants.py`.

python benchmarks/tenants/tenants_offending.py KIND HOST:PORT
"""

import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from jax_passing.config import parse_address
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.packet import LANES_AT_MTU_1500

COUNT = 1000
UDP_SEGMENT = 103
PACKET_BYTES = 20 + 4 * LANES_AT_MTU_1500


class Connection:
    def __init__(self, address: tuple[str, int], source: str | None = None):
        self.socket = socket.create_connection(address, timeout=10, source_address=(source, 0) if source else None)
        self._lines = self.socket.makefile("rb")
        self.hello = messages.decode_from_switch(self._lines.readline())
        self.udp_port = 1

    def join(self, job: str, rank: int = 0, world_size: int = 1) -> None:
        assert isinstance(self.hello, messages.Hello)
        self.socket.sendall(
            messages.encode(
                messages.Join(
                    protocol_version=messages.PROTOCOL_VERSION,
                    job=job,
                    rank=rank,
                    world_size=world_size,
                    switches=(self.hello.instance,),
                    udp_port=self.udp_port,
                    instance=f"{job} {rank} {id(self)}",
                    join_deadline_s=3600.0,
                )
            )
        )

    def receive(self) -> messages.FromSwitch | None:
        with suppress(OSError):
            if line := self._lines.readline():
                return messages.decode_from_switch(line)
        return None


def _sources(address: tuple[str, int]) -> list[str | None]:
    """Returns the addresses to connect from: this host's own, or eight of the switch's machine if that is this one."""
    with socket.create_connection(address, timeout=10) as probe:
        beside = probe.getsockname()[0] == address[0]
    return [f"127.0.0.{2 + i}" for i in range(8)] if beside else [None]


def connections(address: tuple[str, int], begun: Callable[[], None]) -> None:
    """Opens 1,000 and says nothing. What is closed is opened again."""
    _open_all(address, begun, lambda connection, number: None)


def half_lines(address: tuple[str, int], begun: Callable[[], None]) -> None:
    """The same, and each says as much as it may without an end."""
    _open_all(address, begun, lambda connection, number: connection.socket.sendall(b"x" * 60_000))


def waiting(address: tuple[str, int], begun: Callable[[], None]) -> None:
    """The same, and each waits in a job of its own for others that never come; reads nothing, half says a line."""

    def join(connection: Connection, number: int) -> None:
        connection.join(f"waiting {number}", 0, 2)
        connection.socket.sendall(b"x" * 60_000)

    _open_all(address, begun, join)


def _open_all(address: tuple[str, int], begun: Callable[[], None], then: Callable[[Connection, int], None]) -> None:
    sources, held, number = _sources(address), [], 0
    while True:
        with suppress(OSError):
            while len(held) < COUNT:
                connection = Connection(address, sources[number % len(sources)])
                connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                then(connection, number)
                held.append(connection)
                number += 1
                if number == COUNT // 10:
                    begun()
        time.sleep(0.02)
        poll = select.poll()
        for connection in held:
            poll.register(connection.socket, select.POLLHUP | select.POLLRDHUP | select.POLLERR)
        gone = {fd for fd, _ in poll.poll(0)}
        for connection in held:
            if connection.socket.fileno() in gone:
                connection.socket.close()
        held = [connection for connection in held if connection.socket.fileno() >= 0]


def slots(address: tuple[str, int], begun: Callable[[], None]) -> None:
    """Starts job after job, and never leaves one."""
    held: list[Connection] = []
    for number in range(10**9):
        connection = Connection(address)
        connection.join(f"slots {number}")
        if isinstance(connection.receive(), messages.Welcome):
            held.append(connection)
        if number == 30:
            begun()
        for one in held:
            with suppress(OSError):
                one.socket.sendall(messages.encode(messages.Heartbeat()))
        time.sleep(0.001)


def stalled_reader(address: tuple[str, int], begun: Callable[[], None]) -> None:
    """Jobs of 16 ranks, of whom rank 0 tells the others as much as it can, and these don't read."""
    relay = messages.encode(messages.Relay(b"x" * messages.RELAY_BYTES_MAX))
    for number in range(10**9):
        members = [Connection(address) for _ in range(16)]
        for rank, connection in enumerate(members):
            connection.join(f"stalled {number % 4}", rank, len(members))
        for connection in members:
            connection.receive()
        if number == 0:
            begun()
        with suppress(OSError):
            for _ in range(100):
                members[0].socket.sendall(relay)
        for connection in members:
            connection.socket.close()


def control_flood(address: tuple[str, int], begun: Callable[[], None]) -> None:
    """Sixteen members who say Heartbeat as fast as they can, and read what comes back."""
    members = [Connection(address) for _ in range(16)]
    for number, connection in enumerate(members):
        connection.join(f"flood {number % 4}", number // 4, 4)
    begun()
    beats = messages.encode(messages.Heartbeat()) * 500

    def beat(connection: Connection) -> None:
        with suppress(OSError):
            while True:
                connection.socket.sendall(beats)

    for connection in members:
        connection.receive()
        threading.Thread(target=beat, args=(connection,), daemon=True).start()
    while True:
        for readable in select.select([connection.socket for connection in members], [], [])[0]:
            readable.recv(1 << 20)


def job_packets(address: tuple[str, int], begun: Callable[[], None]) -> None:
    """A job of one rank that sends contributions as fast as its link takes them; each is a result at once."""
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    connection = Connection(address)
    assert isinstance(connection.hello, messages.Hello)
    udp.connect((address[0], connection.hello.data_port))
    connection.udp_port = udp.getsockname()[1]
    connection.join("loud")
    welcome = connection.receive()
    assert isinstance(welcome, messages.Welcome), welcome

    def packet(position: int) -> bytes:
        slot = welcome.slot_first + position % welcome.slot_count
        version = position // welcome.slot_count % 2
        return _header(welcome.job_id, welcome.epoch, slot, position % 2**32, version)

    _flood(udp, packet, begun, lambda: connection.socket.sendall(messages.encode(messages.Heartbeat())))


def foreign_packets(address: tuple[str, int], begun: Callable[[], None]) -> None:
    """Packets of other jobs as fast as the link takes them: of those with the numbers before its own's."""
    udp, own = _number_of_a_job(address)

    def packet(position: int) -> bytes:
        return _header((own - 1 - position // 44 % 128) % 2**16, 1, position % 1024, position, 0)

    _flood(udp, packet, begun)


def short_packets(address: tuple[str, int], begun: Callable[[], None]) -> None:
    """Packets of 20 bytes of the job before its own, each sent by itself: as many as a thread sends."""
    udp, job = _number_of_a_job(address)
    begun()
    packet = _header((job - 1) % 2**16, 1, 0, 0, 0)[:20]
    while True:
        with suppress(OSError):
            for _ in range(1000):
                udp.send(packet)


def _number_of_a_job(address: tuple[str, int]) -> tuple[socket.socket, int]:
    """Returns the number of a job that ends at once (the next has the next), and a socket to the data plane."""
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    connection = Connection(address)
    assert isinstance(connection.hello, messages.Hello)
    udp.connect((address[0], connection.hello.data_port))
    connection.join("spy")
    welcome = connection.receive()
    assert isinstance(welcome, messages.Welcome), welcome
    connection.socket.close()
    return udp, welcome.job_id


def _header(job: int, epoch: int, slot: int, sequence: int, version: int) -> bytes:
    return struct.pack(">BBBBHHHHIBBH", 0x9A, 1, 1, 0, job, epoch, 0, slot, sequence, version, 1, LANES_AT_MTU_1500)


def _flood(
    udp: socket.socket,
    header: Callable[[int], bytes],
    begun: Callable[[], None],
    now_and_then: Callable[[], None] = lambda: None,
) -> None:
    lanes, position, beat_s = bytes(4 * LANES_AT_MTU_1500), 0, 0.0
    segments = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("H", PACKET_BYTES))]
    begun()
    while True:
        parts = [part for i in range(44) for part in (header(position + i), lanes)]
        with suppress(OSError):
            udp.sendmsg(parts, segments)
        position += 44
        if time.monotonic() - beat_s > 1:
            beat_s = time.monotonic()
            now_and_then()


class Kind(NamedTuple):
    offend: Callable[[tuple[str, int], Callable[[], None]], None]
    from_many_addresses: bool = False


KINDS = {
    "connections": Kind(connections),
    "connections-8-addresses": Kind(connections, True),
    "half-lines-8-addresses": Kind(half_lines, True),
    "waiting-8-addresses": Kind(waiting, True),
    "slots": Kind(slots),
    "stalled-reader": Kind(stalled_reader),
    "control-flood": Kind(control_flood),
    "job-packets": Kind(job_packets),
    "foreign-packets": Kind(foreign_packets),
    "short-packets": Kind(short_packets),
}


if __name__ == "__main__":
    KINDS[sys.argv[1]].offend(parse_address(sys.argv[2]), lambda: print("begun", flush=True))
