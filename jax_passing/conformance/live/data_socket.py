"""A UDP socket of a worker, or of the switch's parent, on this machine; and one that hears a multicast group."""

import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from jax_passing.config import address_text

PACKET_BYTES_MAX = 65536
TTL = 1  # of what goes to a group: it doesn't pass routers
BUFFER_BYTES = 4 << 20
_IP_RECVTTL, _IP_MULTICAST_ALL = 12, 49  # linux/in.h
_SO_RCVBUFFORCE = 33  # asm-generic/socket.h
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER = 10, 23  # linux/in.h, linux/in6.h
_PMTUDISC_WANT, _PMTUDISC_DO = 1, 2

Source = tuple[str, int]


def _as_it_is(packet: bytes) -> bytes:
    return packet


class DataSocket:
    """This socket isn't connected: a packet from another address than the switch's is an error, and must be seen.

    Attributes:
      seal, open: put a tag on what is sent, and take it off what comes, where packets have tags.
      name: its address, for people.
      stray: the first packet that came from elsewhere, for people; empty if none did.
    """

    seal: Callable[[bytes], bytes] = staticmethod(_as_it_is)
    open: Callable[[bytes], bytes] = staticmethod(_as_it_is)

    def __init__(self, own_host: str):
        self._udp = socket.socket(socket.AF_INET6 if ":" in own_host else socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind((own_host, 0))
        self.port: int = self._udp.getsockname()[1]
        self.name = address_text(own_host, self.port)
        self.stray = ""

    def set_switch(self, host: str, port: int) -> None:
        """Sets the address that packets go to and come from. Raises OSError."""
        self._switch = socket.getaddrinfo(host, port, self._udp.family, socket.SOCK_DGRAM)[0][4]

    def let_fragments(self, allowed: bool) -> None:
        """Lets the network fragment packets. Else one that is too long for the path is lost, or raises OSError."""
        value = _PMTUDISC_WANT if allowed else _PMTUDISC_DO
        if self._udp.family == socket.AF_INET6:
            self._udp.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, value)
        else:
            self._udp.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, value)

    def send(self, packet: bytes) -> None:
        self.send_raw(self.seal(packet))

    def send_raw(self, packet: bytes) -> None:
        """Sends a packet without a tag of ours."""
        self._udp.sendto(packet, self._switch)

    def receive(self, until: float) -> bytes:
        """Returns the next packet from the switch. Raises TimeoutError at `until`, in seconds of time.monotonic()."""
        while (left_s := until - time.monotonic()) > 0:
            self._udp.settimeout(left_s)
            packet, source = self._received()
            if source[:2] == self._switch[:2]:
                return self.open(packet)
            wanted, got = (address_text(*address[:2]) for address in (self._switch, source))
            self._strange(f"a packet of {len(packet)} bytes from {got}; the switch sends from {wanted}")
        raise TimeoutError("timed out")

    def _received(self) -> tuple[bytes, Source]:
        packet, source = self._udp.recvfrom(PACKET_BYTES_MAX)
        return packet, source

    def _strange(self, text: str) -> None:
        self.stray = self.stray or text

    def close(self) -> None:
        self._udp.close()


class GroupSocket(DataSocket):
    """Hears packets to an IPv4 multicast group on the interface that has the address `own_host`. Raises OSError."""

    def __init__(self, group: tuple[str, int], own_host: str):
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.name, self.port, self.stray = address_text(*group), group[1], ""
        try:
            self._udp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._udp.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
            self._udp.setsockopt(socket.IPPROTO_IP, _IP_RECVTTL, 1)
            with suppress(PermissionError):  # all bursts of probes fit, however late they are read
                self._udp.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, BUFFER_BYTES)
            self._udp.bind(group)
            membership = socket.inet_aton(group[0]) + socket.inet_aton(own_host)
            self._udp.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        except BaseException:
            self._udp.close()
            raise

    def _received(self) -> tuple[bytes, Source]:
        packet, controls, _, source = self._udp.recvmsg(PACKET_BYTES_MAX, socket.CMSG_SPACE(4))
        ttl = next((int.from_bytes(data, sys.byteorder) for _, kind, data in controls if kind == socket.IP_TTL), TTL)
        if ttl != TTL:
            self._strange(
                f"a packet with a TTL of {ttl} to the group; it must be {TTL}, so that no router passes it on"
            )
        return packet, source
