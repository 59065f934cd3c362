"""Each job has slots of the switch to itself."""

from collections.abc import Collection
from dataclasses import dataclass

from jax_passing.protocol.packet import LANES_AT_MTU_1500
from jax_passing.settings_parser import is_power_of_two


def room_of_slot(lanes: int) -> int:
    """Returns how many slots of LANES_AT_MTU_1500 a slot of longer chunks takes the room of, a power of two: a job has
    so many times fewer of these, and as much memory."""
    return 1 << (-(-lanes // LANES_AT_MTU_1500) - 1).bit_length()


@dataclass(frozen=True)
class _Range:
    count: int
    owners: frozenset[str]


class SlotPartition:
    """Ranges have a power-of-two size, and are aligned to it, so that freed ones always fit together again.

    A range's owners are the addresses of its job's members. It counts for each of them as a whole, since that is what
    the others can't have.
    """

    def __init__(self, slot_total: int, per_owner: int | None = None):
        self._slot_total = slot_total
        self._per_owner = slot_total if per_owner is None else per_owner
        self._ranges: dict[int, _Range] = {}  # by first slot

    @property
    def held(self) -> int:
        """Returns how many slots are taken."""
        return sum(one.count for one in self._ranges.values())

    def who_has_enough(self, count: int, owners: Collection[str]) -> str | None:
        """Returns an owner that would hold more than one may, with `count` more slots; None if there is none."""
        for owner in sorted(owners):
            held = sum(one.count for one in self._ranges.values() if owner in one.owners)
            if held + count > self._per_owner:
                return owner
        return None

    def allocate(self, count: int, owners: Collection[str] = ()) -> int | None:
        """Returns the first slot of a free range of `count` slots, a power of two; None if there is none."""
        assert is_power_of_two(count), count
        for first in range(0, self._slot_total - count + 1, count):
            if all(first + count <= other or first >= other + one.count for other, one in self._ranges.items()):
                self._ranges[first] = _Range(count, frozenset(owners))
                return first
        return None

    def free(self, first: int) -> None:
        del self._ranges[first]
