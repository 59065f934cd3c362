"""Contributions that their sender has no right to make, by somebody who sees what a switch sends."""

import random
import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace

from jax_passing.protocol.packet import CONTRIBUTION, HEADER, RESULT, MalformedError, Packet, decode
from support.net.frames import UDP, ipv4, udp
from support.net.namespaces import inside

PAUSE_S = 0.001
_ETH_P_IP = 0x0800
Address = tuple[str, int]


class Forger:
    """Context manager: forges as long as it is open.

    The results that come to a host, in the namespace `near`, tell the numbers of its job and how far the job is. In
    what is forged one field is wrong, in turns, or none: then it is the sender's address alone, which is that of the
    namespace `elsewhere`; without that, packets come from the host itself. They are of chunks that nobody has sent yet:
    a single one that is believed spoils the sums.

    Attributes:
      sent: packets, so far.
    """

    def __init__(self, near: str, elsewhere: str | None, slots: int, workers: int):
        """`slots`, `workers`: of the job, at this switch."""
        self._slots, self._workers = slots, workers
        with inside(near):
            self._capture = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
            self._capture.bind(("eth0", _ETH_P_IP))  # what goes out isn't captured
            self._capture.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            self._capture.settimeout(0.1)
        self._in_its_name = elsewhere is None
        with inside(elsewhere or near):
            kind, protocol = (socket.SOCK_RAW, socket.IPPROTO_RAW) if elsewhere is None else (socket.SOCK_DGRAM, 0)
            self._sender = socket.socket(socket.AF_INET, kind, protocol)
        self._random = random.Random(1)
        self.sent = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Forger":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._capture.close()
        self._sender.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            if (captured := self._latest()) is not None:
                switch, host, result = captured
                self._send(switch, host, self._forged(result))
                self.sent += 1
            time.sleep(PAUSE_S)

    def _latest(self) -> tuple[Address, Address, Packet] | None:
        """A result that comes just now: from where, to where, and itself."""
        try:
            for _ in range(2):  # the buffer holds one, which is old
                data = self._capture.recv(1 << 16)
        except TimeoutError:
            return None
        if data[9] != UDP:
            return None
        source, destination = (socket.inet_ntoa(data[at : at + 4]) for at in (12, 16))
        at = 4 * (data[0] & 15)
        ports, payload = [int.from_bytes(data[at + half : at + half + 2]) for half in (0, 2)], data[at + 8 :]
        with suppress(MalformedError):
            packet = decode(payload[: HEADER.size + 4 * int.from_bytes(payload[18:20])])  # the first one, of several
            if packet.type == RESULT:
                return (source, ports[0]), (destination, ports[1]), packet
        return None

    def _forged(self, result: Packet) -> bytes:
        packet = replace(
            result,
            type=CONTRIBUTION,
            worker=self._random.randrange(self._workers),
            sequence=(result.sequence + 2 * self._slots) % (1 << 32),  # of the same slot and version
            lanes=(0x7F7F7F7F,) * len(result.lanes),
        )
        wrong = (
            {},
            {"version": 2},
            {"job": packet.job ^ 1},
            {"epoch": packet.epoch ^ 1},
            {"worker": self._workers},
        )
        return replace(packet, **wrong[self.sent % len(wrong)]).encode()

    def _send(self, switch: Address, host: Address, data: bytes) -> None:
        if self._in_its_name:
            datagram = ipv4(host[0], switch[0], UDP, udp(host[1], switch[1], data))
            self._sender.sendto(datagram, (switch[0], 0))
        else:
            self._sender.sendto(data, switch)
