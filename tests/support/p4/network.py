"""A network namespace with a P4 switch in it, and a raw socket at the far end of each port."""

import os
import socket
import struct

from support.net import namespaces
from support.net.namespaces import inside, ip

# (MAC, IP address); in turn at all ports, from the first on.
HOSTS = [(f"02:00:00:00:00:{host:02x}", f"10.0.0.{host}") for host in range(1, 73)]

_ETH_P_ALL = 0x0003
_SOL_PACKET, _PACKET_AUXDATA, _PACKET_IGNORE_OUTGOING, _VLAN_VALID = 263, 8, 23, 1 << 4
_AUXDATA = struct.Struct("=IIIHHHH")  # status, two lengths, two offsets, tag, its EtherType


class Port:
    """The far end of a switch's port: whole frames in and out."""

    def __init__(self, interface: str):
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        self._socket.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        self._socket.bind((interface, _ETH_P_ALL))

    def send(self, frame: bytes | bytearray) -> None:
        self._socket.send(frame)

    def receive(self, timeout_s: float = 20.0) -> bytes | None:
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
        namespaces.add(self.namespace)
        for port in range(ports):
            ip(self.namespace, "link", "add", f"s{port}", "type", "veth", "peer", "name", f"h{port}")
            for end in (f"s{port}", f"h{port}"):
                ip(self.namespace, "link", "set", end, "mtu", "1600", "up")
        namespaces.await_up(self.namespace, *(f"{end}{port}" for port in range(ports) for end in "sh"))
        with inside(self.namespace):
            self.ports = [Port(f"h{port}") for port in range(ports)]

    def close(self) -> None:
        for port in self.ports:
            port.close()
        namespaces.remove(self.namespace)
