"""The devices that make XLA's collectives together are a group, in XLA's words a clique. This does no I/O."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jax_passing.errors import names


@dataclass(frozen=True)
class DeviceGroup:
    """Some devices make collectives together.

    Attributes:
      id: 63 bits, the same in all processes.
      name: for people.
      hosts: the rank of each device's host, in the order of the devices.
    """

    id: int
    name: str
    hosts: tuple[int, ...]

    @property
    def host_set(self) -> tuple[int, ...]:
        """Returns the ranks of its hosts, each once, ascending."""
        return tuple(sorted(set(self.hosts)))


def group(number: int, devices: Sequence[int], host_of: Mapping[int, int]) -> DeviceGroup:
    """Returns the group of these devices, in their order.

    Args:
      number: how many groups of the same devices there were before.
      devices: their ids.
      host_of: by the id of a device, the rank of its host.

    Raises:
      ValueError: there is no such device.
    """
    unknown = sorted(set(devices) - host_of.keys())
    if unknown:
        raise ValueError(f"JAX has no devices {', '.join(map(str, unknown))}")
    hosts = tuple(host_of[device] for device in devices)
    digest = hashlib.sha256(f"{number} {list(devices)} {hosts}".encode()).digest()
    count = "1 device" if len(devices) == 1 else f"{len(devices)} devices"
    name = f"{count}, from device {devices[0]} on, of {names(sorted(set(hosts)))}"
    return DeviceGroup(int.from_bytes(digest[:8]) >> 1, name, hosts)
