"""The eBPF program hands results up: user space sends those that the kernel can't cut out of a super-packet."""

import itertools
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

from jax_passing.protocol.packet import EVERY_WORKER

UDP_SEGMENT = 103  # linux/udp.h
SEGMENTS_MAX = 64  # of a super-packet, in any kernel
UDP_BYTES_MAX = 65507
SEND_WAIT_S = 0.02
_SOCKET_BUFFER_BYTES = 4 << 20
_SO_SNDBUFFORCE = 32  # asm-generic/socket.h; needs CAP_NET_ADMIN, as all of this does

# struct out in xla_ffi/ebpf/maps.h.
_HEAD = struct.Struct("=II")
_RESULT = struct.Struct("=HHHxx")
_RESULTS_MAX = 128

Address = tuple[str, int]


class ResultsSender:
    """Holds the switch's UDP port: no other process gets it, and the kernel refuses no packet that comes to it.

    `send` runs on a thread of its own; a caller that changes `routes` replaces the entry of a job. Raises OSError if
    the port is taken.
    """

    def __init__(self, host: str, port: int):
        self.routes: dict[int, tuple[tuple[Address, ...], Address | None]] = {}  # job: its workers, and its group
        self.packets_sent = self.bytes_sent = self.results_multicast = self.packets_unsent = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.settimeout(SEND_WAIT_S)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)  # nobody reads
            with suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _SOCKET_BUFFER_BYTES)
            # Linux sends to groups from the device that has this address just then, where IP_MULTICAST_IF would fix it.
            self._socket.bind((host, port))
        except BaseException:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]

    def send(self, record: bytes) -> None:
        """Sends one record of the program. Results that can't be sent are counted; hosts ask for them again."""
        for (job, to, size), packets in _runs(record):
            workers, group = self.routes.get(job, ((), None))
            if to == EVERY_WORKER and group is not None:
                destinations: tuple[Address, ...] = (group,)
                self.results_multicast += len(packets) // size
            else:
                destinations = workers if to == EVERY_WORKER else workers[to : to + 1]
            step = min(SEGMENTS_MAX, UDP_BYTES_MAX // size) * size
            for first in range(0, len(packets), step):
                for destination in destinations:
                    self.send_packets(packets[first : first + step], size, destination)

    def send_packets(self, packets: bytes, size: int, destination: Address) -> None:
        """Sends packets of `size` bytes side by side; the last one may be shorter."""
        count = -(-len(packets) // size)
        try:
            self._socket.sendmsg(
                [packets], [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("=H", size))], 0, destination
            )
        except OSError:  # the queue is full, or the host is gone
            self.packets_unsent += count
            return
        self.packets_sent += count
        self.bytes_sent += len(packets)

    def close(self) -> None:
        self._socket.close()


def _runs(record: bytes) -> Iterator[tuple[tuple[int, int, int], bytes]]:
    """Yields (job, to, bytes of a packet) and the packets side by side, of results in a row that have these in
    common."""
    count, _ = _HEAD.unpack_from(record)
    at = _HEAD.size + _RESULTS_MAX * _RESULT.size
    results = [_RESULT.unpack_from(record, _HEAD.size + i * _RESULT.size) for i in range(count)]
    for (size, job, to), run in itertools.groupby(results):
        end = at + size * len(list(run))
        yield (job, to, size), record[at:end]
        at = end
