"""XLA's devices come together in groups: what each process says of its devices makes them. This does no I/O.

XLA calls MPI_Comm_split for each device of a group: the color is the id of the group's first device, and the key is the
device's index in the group. Nothing tells who else is in it. As in MPI all processes split at the same time, so that
those with one color are together.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from jax_passing.errors import names

Call = tuple[int, int]
"""The color and the key of a device."""


@dataclass(frozen=True)
class Group:
    """These devices make collectives together.

    Attributes:
      id: 63 bits, the same in all processes.
      name: for people.
      hosts: the rank of each device's host, in the order of the keys.
      keys: of the devices, ascending.
    """

    id: int
    name: str
    hosts: tuple[int, ...]
    keys: tuple[int, ...]

    @property
    def host_set(self) -> tuple[int, ...]:
        """Returns the ranks of its hosts, each once, ascending."""
        return tuple(sorted(set(self.hosts)))


def groups(number: int, said: Mapping[int, Sequence[Call]]) -> dict[int, Group]:
    """Returns the groups of the split with this number, by their colors.

    Args:
      said: by rank, the calls of a host's devices.

    Raises:
      ValueError: two devices have the same index in a group, so they aren't in the same split.
    """
    devices = sorted((color, key, rank) for rank, calls in said.items() for color, key in calls)
    made = {}
    for color, own in groupby(devices, lambda device: device[0]):
        keys, hosts = zip(*((key, rank) for _, key, rank in own), strict=True)
        if len(set(keys)) < len(keys):
            raise ValueError(
                f"two devices say that they have the same index in the group that begins with device {color}"
            )
        digest = hashlib.sha256(f"{number} {color} {keys} {hosts}".encode()).digest()
        count = "1 device" if len(keys) == 1 else f"{len(keys)} devices"
        name = f"{count}, from device {color} on, of {names(sorted(set(hosts)))}"
        made[color] = Group(int.from_bytes(digest[:8]) >> 1, name, hosts, keys)
    return made
