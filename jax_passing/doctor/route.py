"""The way to a switch, as this machine knows it: the interface, its MTU and its rate."""

import socket
from dataclasses import dataclass

from jax_passing.config import address_text
from jax_passing.doctor.findings import Finding, good, warning
from jax_passing.protocol.link_rate import interface_of, link_gbit
from jax_passing.protocol.packet import HEADER, TAG_BYTES

_IP_MTU, _IPV6_MTU = 14, 24  # linux/in.h, linux/in6.h
_UDP_BYTES, _IPV4_BYTES, _IPV6_BYTES = 8, 20, 40


@dataclass(frozen=True)
class Route:
    """`interface`: None if several have this address. `own`: our address on it. `gbit`: None if it isn't known."""

    switch: str
    interface: str | None
    own: str
    mtu: int
    gbit: float | None

    @property
    def lanes_that_fit(self) -> int:
        return (self.mtu - self._header_bytes) // 4

    def mtu_for(self, lanes: int) -> int:
        """Returns the MTU that packets of `lanes` lanes need, tag included."""
        return self._header_bytes + 4 * lanes

    @property
    def _header_bytes(self) -> int:
        return (_IPV6_BYTES if ":" in self.own else _IPV4_BYTES) + _UDP_BYTES + HEADER.size + TAG_BYTES

    @property
    def through(self) -> str:
        return f"{self.interface or 'an interface'} ({self.own})"


def to(address: tuple[str, int]) -> Route:
    """Asks the kernel; sends nothing. Raises OSError."""
    family, kind, _, _, resolved = socket.getaddrinfo(*address, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as udp:
        udp.connect(resolved)
        own = str(udp.getsockname()[0])
        if family == socket.AF_INET6:
            mtu = udp.getsockopt(socket.IPPROTO_IPV6, _IPV6_MTU)
        else:
            mtu = udp.getsockopt(socket.IPPROTO_IP, _IP_MTU)
    return Route(address_text(*address), interface_of(own), own, mtu, link_gbit(own))


def mtu(route: Route, lanes: int) -> Finding:
    """Judges whether the longest packets, of `lanes` lanes, fit."""
    check = "MTU"
    if route.mtu >= route.mtu_for(lanes):
        return good(check, f"{route.mtu} bytes to {route.switch}, through {route.through}")
    return warning(
        check,
        f"{route.mtu} bytes to {route.switch}, through {route.through}; packets of {lanes} lanes with a tag take "
        f"{route.mtu_for(lanes)}, so IP cuts them in two, if nobody drops them",
        f"Raise the MTU to {route.mtu_for(lanes)} or more, or start the switch with --lanes-per-chunk "
        f"{route.lanes_that_fit} or fewer.",
    )


def rate(route: Route, given_gbit: float | None) -> Finding:
    """Tells the rate of the link. `given_gbit`: the setting."""
    check = "rate of the link"
    if given_gbit is not None:
        return good(check, f"{given_gbit:g} Gbit/s, as link_gbit says")
    if route.gbit is not None:
        return good(check, f"{route.gbit:g} Gbit/s, as the card of {route.through} says")
    return warning(
        check,
        f"{route.through} doesn't tell: strategy auto reckons with other hosts' rates, or with 10 Gbit/s",
        "Set JAX_PASSING_LINK_GBIT if sums use strategy auto.",
    )
