"""A UDP socket of a worker, or of the switch's parent, on this machine."""

import socket
import time

from jax_passing.config import address_text

PACKET_BYTES_MAX = 65536


class DataSocket:
    """It isn't connected: what comes from elsewhere than the switch's data address is an error, and must be seen.

    Attributes:
      stray: the first packet that came from elsewhere, for people; empty if none did.
    """

    def __init__(self, own_host: str):
        self._udp = socket.socket(socket.AF_INET6 if ":" in own_host else socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind((own_host, 0))
        self.port: int = self._udp.getsockname()[1]
        self.stray = ""

    def set_switch(self, host: str, port: int) -> None:
        """Where packets go, and come from. Raises OSError."""
        self._switch = socket.getaddrinfo(host, port, self._udp.family, socket.SOCK_DGRAM)[0][4]

    def send(self, packet: bytes) -> None:
        self._udp.sendto(packet, self._switch)

    def receive(self, until: float) -> bytes:
        """The next packet from the switch. Raises TimeoutError at `until`, in seconds of time.monotonic()."""
        while (left_s := until - time.monotonic()) > 0:
            self._udp.settimeout(left_s)
            packet, source = self._udp.recvfrom(PACKET_BYTES_MAX)
            if source[:2] == self._switch[:2]:
                return packet
            wanted, got = (address_text(*address[:2]) for address in (self._switch, source))
            self.stray = self.stray or f"a packet of {len(packet)} bytes from {got}; the switch sends from {wanted}"
        raise TimeoutError("timed out")

    def close(self) -> None:
        self._udp.close()
