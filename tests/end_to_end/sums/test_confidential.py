"""Confidential sums, from the command line to the bits of the sums, and to all packets that somebody sees who reads the
network on which switch and hosts are."""

import itertools
import math
import os
import socket
import struct
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jax_passing.protocol import packet
from support.jobs.cluster import COMPILED_FAST, counters, digest

if TYPE_CHECKING:
    from support.jobs.cluster import Cluster

PROGRAM = "sums/sums.py"
DTYPES = ("int8", "bfloat16", "float32", "float64")
_ETH_P_IP = 0x0800


class Reader:
    """Context manager: reads the UDP packets of loopback to and from a port, with the rights of root. It may miss some.

    Attributes:
      packets: their payloads; a super-packet is one.
    """

    def __init__(self, port: int):
        self.packets: list[bytes] = []
        self._port = port
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_IP))
        self._socket.bind(("lo", _ETH_P_IP))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self._socket.settimeout(0.1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Reader":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                ip = self._socket.recv(1 << 17)
            except TimeoutError:
                continue
            udp = ip[4 * (ip[0] & 15) :]
            if ip[9] == socket.IPPROTO_UDP and self._port in struct.unpack_from("!HH", udp):
                self.packets.append(udp[8:])

    def lanes(self) -> list[bytes]:
        """Returns the lanes of each packet, in network order. Asserts that its header tells nothing of the elements."""
        found = []
        for several in self.packets:
            at = 0
            while at < len(several):
                _, _, kind, flags, *_, lane_format, count = packet.HEADER.unpack_from(several, at)
                end = at + packet.HEADER.size + 4 * count
                if kind != packet.PROBE:
                    assert (flags, lane_format) == (0, packet.SUM)
                    found.append(several[at + packet.HEADER.size : end])
                at = end
        return found


def deviation(packets: list[bytes], byte: int) -> float:
    """Returns Pearson's statistic of this byte of all lanes, less its mean and in units of its standard deviation: it
    is above 6 with a probability of 1e-7 if all its 256 values are equally likely."""
    counts = Counter(itertools.chain.from_iterable(lanes[byte::4] for lanes in packets))
    mean = counts.total() / 256
    statistic = sum((counts[value] - mean) ** 2 / mean for value in range(256))
    return (statistic - 255) / math.sqrt(2 * 255)


def test_who_reads_all_packets_sees_random_numbers(cluster: "Cluster", hosts_key: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may read all packets")
    env = COMPILED_FAST | {"JAX_PASSING_HOSTS_KEY_FILE": str(hosts_key), "JAX_PASSING_CONFIDENTIAL": "true"}
    with Reader(int(cluster.switch.address.rpartition(":")[2])) as reader:
        confidential = digest(cluster.start(PROGRAM, *DTYPES, env=env))
    assert counters(cluster.switch)["complete"] > 0
    packets = reader.lanes()
    assert len(packets) > 1000
    for byte in range(4):
        assert abs(deviation(packets, byte)) < 6
    pairs = Counter(lanes[:8] for lanes in packets if len(lanes) >= 8)  # resends, and each host's copy of a result
    assert max(pairs.values()) < 50

    plain = cluster.start_switch()
    with Reader(int(plain.address.rpartition(":")[2])) as reader:
        others = cluster.start(PROGRAM, *DTYPES, env=COMPILED_FAST | {"JAX_PASSING_SWITCH": plain.address})
        assert digest(others) == confidential
    in_the_clear = [several[packet.HEADER.size :] for several in reader.packets]
    assert abs(deviation(in_the_clear, 0)) > 100  # so this would notice
