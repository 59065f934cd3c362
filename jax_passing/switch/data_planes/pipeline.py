"""A programmable switch at run time, whoever made it, has tables, multicast groups, counters and registers, by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from jax_passing.switch.data_planes.data_plane import DataPlaneError


class DeviceError(DataPlaneError):
    """The device can't be reached, or refused what was asked."""


class UnreadableError(DeviceError):
    """The device's runtime server has no way to tell what registers hold."""


@dataclass(frozen=True)
class Entry:
    """This is a row of a table. Names of tables, keys, actions and parameters are the program's, their last part where
    they have several.

    Attributes:
      match: each key's value. In a ternary table keys may be left out.
      masks: in a ternary table, which bits of each key count.
      priority: in a ternary table, positive: the row of the highest one that matches counts.
    """

    table: str
    match: Mapping[str, int]
    action: str = ""
    parameters: Mapping[str, int] = field(default_factory=dict)
    masks: Mapping[str, int] = field(default_factory=dict)
    priority: int = 0


T = TypeVar("T")


def only_one(kind: str, rows: Sequence[T], name: str, name_of: Callable[[T], str]) -> T:
    """Returns the row of the device's program that has this name, or whose name ends so.

    Raises:
      DeviceError: it has none, or several.
    """
    found = [row for row in rows if name_of(row) == name or name_of(row).endswith("." + name)]
    if len(found) != 1:
        raise DeviceError(
            f"the device's program has {len(found)} {kind}s named {name}: is it the one in p4/, of this version?"
        )
    return found[0]


class Pipeline(Protocol):
    """Every method raises DeviceError."""

    @property
    def lanes(self) -> int:
        """The 32-bit lanes of each packet that the program sums."""

    @property
    def register_cells(self) -> int:
        """Returns how many cells each register has that holds the state of slots: one for each version of each slot."""

    def attach(self) -> None:
        """Takes the device over, as its one controller, and empties tables and groups.

        The first time from any other controller; after that it is refused while another one has the device.
        """

    def check_control(self) -> None:
        """Raises DeviceError if another controller has taken the device over since `attach`."""

    def insert(self, entry: Entry) -> None: ...

    def delete(self, entry: Entry) -> None: ...

    def entry_count(self, table: str) -> int: ...

    def insert_group(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Packets to this multicast group are copied to each (port, replication number)."""

    def delete_group(self, group: int) -> None:
        """Deletes a group, or the inserted part of it."""

    def counter(self, name: str) -> Sequence[int]:
        """Returns counts of packets, by index."""

    def register(self, name: str, index: int) -> int:
        """Returns what a register holds. Raises UnreadableError, too."""

    def close(self) -> None: ...
