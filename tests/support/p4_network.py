"""A network namespace with a P4 switch in it, and a raw socket at the far end of each port."""

import contextlib
import ctypes
import os
import socket
import struct
import subprocess
from collections.abc import Iterator

# (MAC, IP address); in turn at all ports, from the first on.
HOSTS = [(f"02:00:00:00:00:{host:02x}", f"10.0.0.{host}") for host in range(1, 73)]

_CLONE_NEWNET = 0x40000000
_ETH_P_ALL = 0x0003
_SOL_PACKET, _PACKET_AUXDATA, _PACKET_IGNORE_OUTGOING, _VLAN_VALID = 263, 8, 23, 1 << 4
_AUXDATA = struct.Struct("=IIIHHHH")  # status, two lengths, two offsets, tag, its EtherType
_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """This thread's new sockets belong to the namespace."""
    with open("/proc/thread-self/ns/net") as outside, open(f"/run/netns/{namespace}") as within:
        _enter(within.fileno())
        try:
            yield
        finally:
            _enter(outside.fileno())


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=10)


class Port:
    """The far end of a switch's port: whole frames in and out."""

    def __init__(self, interface: str):
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        self._socket.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        self._socket.bind((interface, _ETH_P_ALL))

    def send(self, frame: bytes | bytearray) -> None:
        self._socket.send(frame)

    def receive(self, timeout_s: float = 2.0) -> bytes | None:
        """The next frame that the switch sent; None if there is none."""
        self._socket.settimeout(timeout_s)
        try:
            frame, ancillary, *_ = self._socket.recvmsg(65536, 64)
        except TimeoutError:
            return None
        for _, _, data in ancillary:  # VLAN tags, which the kernel hands out beside the frame
            status, *_, tag, protocol = _AUXDATA.unpack(data)
            if status & _VLAN_VALID:
                frame = frame[:12] + struct.pack("!HH", protocol, tag) + frame[12:]
        return frame

    def close(self) -> None:
        self._socket.close()


class Network:
    """`ports` pairs of interfaces in a namespace of their own; the switch's ends are s0, s1, ..."""

    def __init__(self, ports: int):
        self.namespace = f"p4test{os.getpid()}"
        _ip("netns", "add", self.namespace)
        self._in = ["-n", self.namespace]
        _ip(*self._in, "link", "set", "lo", "up")
        for port in range(ports):
            _ip(*self._in, "link", "add", f"s{port}", "type", "veth", "peer", "name", f"h{port}")
            for end in (f"s{port}", f"h{port}"):
                # Neighbour discovery would be ordinary traffic in between.
                self.run("sysctl", "-qw", f"net.ipv6.conf.{end}.disable_ipv6=1")
                _ip(*self._in, "link", "set", end, "mtu", "1600", "up")
        with inside(self.namespace):
            self.ports = [Port(f"h{port}") for port in range(ports)]

    def run(self, *command: str) -> None:
        subprocess.run(["ip", "netns", "exec", self.namespace, *command], check=True, timeout=10)

    def close(self) -> None:
        for port in self.ports:
            port.close()
        _ip("netns", "del", self.namespace)
