"""Each job has a multicast group for its results."""

import ipaddress
import zlib

from jax_passing.protocol.packet import GROUP_PORT
from jax_passing.switch.data_planes.data_plane import Group

GROUPS = ipaddress.IPv4Network("239.192.0.0/14")  # for use inside an organization (RFC 2365)


def group_of(job: int, own_address: str, port: int) -> Group | None:
    """Returns the group of a job of the switch at this address and port; None if the address isn't IPv4."""
    own = ipaddress.ip_address(own_address)
    if own.version != 4:
        return None
    # Jobs of this switch get groups of their own, and switches on one network most likely, too.
    shift = zlib.crc32(own.packed + port.to_bytes(2)) + job
    return Group(str(GROUPS[shift % GROUPS.num_addresses]), GROUP_PORT, own_address)
