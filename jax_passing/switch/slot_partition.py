"""Which slots of the switch belong to which job."""


def is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


class SlotPartition:
    """Ranges of a power-of-two size, aligned to it, so that freed ones always fit together again."""

    def __init__(self, slot_total: int):
        self._slot_total = slot_total
        self._count_of: dict[int, int] = {}  # by first slot

    def allocate(self, count: int) -> int | None:
        """The first slot of a free range of `count` slots, a power of two; None if there is none."""
        assert is_power_of_two(count), count
        for first in range(0, self._slot_total - count + 1, count):
            if all(first + count <= other or first >= other + size for other, size in self._count_of.items()):
                self._count_of[first] = count
                return first
        return None

    def free(self, first: int) -> None:
        del self._count_of[first]
