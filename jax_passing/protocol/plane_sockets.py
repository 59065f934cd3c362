"""The sockets to all planes of a switch: to its data port, and to those that follow, all from one port of ours."""

import errno

from jax_passing import _native

PORT_MAX = 65535


def following_ports(port: int, planes: int) -> range:
    """Returns the ports of all planes but the first, whose `port` this is. Raises OSError."""
    if port + planes - 1 > PORT_MAX:
        raise OSError(errno.EADDRNOTAVAIL, f"{planes} ports from {port} on would end above {PORT_MAX}")
    return range(port + 1, port + planes)


class PlaneSockets:
    """As _native.UdpSocket, which it has one of for each plane.

    Attributes:
      planes: in the order of their numbers.
    """

    def __init__(self, host: str, port: int, planes: int):
        """Raises OSError."""
        first = _native.UdpSocket(host, port)
        self.planes = [first, *map(first.to_port, following_ports(port, planes))]

    @property
    def port(self) -> int:
        return self.planes[0].port

    def lanes_that_fit(self) -> int:
        return self.planes[0].lanes_that_fit()

    def probe_path(self, nonce: int, lanes: int) -> None:
        """All planes are on one machine: so a probe to the first one is enough."""
        self.planes[0].probe_path(nonce, lanes)

    def hears_path(self, nonce: int, lanes: int) -> bool:
        return self.planes[0].hears_path(nonce, lanes)

    def join_group(self, address: str, port: int, *, job: int, epoch: int, nonce: int) -> None:
        """Has each socket hear what its own plane sends to the group. Raises OSError or ValueError."""
        for each in self.planes:
            each.join_group(address, port, job=job, epoch=epoch, nonce=nonce)

    def hears_group(self) -> bool:
        """Takes what has arrived at each. Returns whether the probes of all planes have been heard."""
        heard = [each.hears_group() for each in self.planes]
        return all(heard)

    def leave_group(self) -> None:
        for each in self.planes:
            each.leave_group()
