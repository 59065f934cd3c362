"""A rank does one of these programs for `star.py`, and sums these numbers."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Leaves:
    """The leaves of the pytree that is summed: their numbers of elements, and their type."""

    elements: tuple[int, ...]
    dtype: str

    def ranges(self) -> list[tuple[int, int]]:
        """First element and number of elements of each leaf."""
        return [(sum(self.elements[:i]), elements) for i, elements in enumerate(self.elements)]


class Program(ABC):
    """A contender's work in one process."""

    @abstractmethod
    def prepare(self, leaves: Leaves, iteration: int) -> Any:
        """The local input of a sum."""

    @abstractmethod
    def sum(self, x: Any) -> Any:
        """Returns when the sum is there."""

    def sum_beside(self, x: Any) -> Any:
        """As `sum`, in a thread beside the one that sums."""
        raise NotImplementedError

    @abstractmethod
    def wrong(self, out: Any, leaves: Leaves, iteration: int) -> int:
        """Counts the elements that aren't what they must be."""

    def close(self) -> None:  # noqa: B027
        """Leaves in order, if there is something to leave."""


# Integers that vary by element, iteration and member (a device that adds something), scattered so that a chunk in a
# wrong offset shows, small enough that every sum is exact, and with a sum in closed form. In uint32, which wraps.
VALUES = {"float32": 1009, "int32": 1009, "bfloat16": 11}  # of 16 members, at most 40 * 1008 + 120 and 16 * 10 + 8


def value(np: Any, index: Any, member: Any, iteration: Any, dtype: str) -> Any:
    scattered = (index * np.uint32(2654435761) + iteration * np.uint32(40503) >> 12) % VALUES[dtype]
    if dtype == "bfloat16":  # eight bits hold integers up to 256
        return scattered + member % 2
    return scattered * (member % 4 + 1) + member


def value_sum(np: Any, index: Any, members: int, iteration: Any, dtype: str) -> Any:
    scattered = (index * np.uint32(2654435761) + iteration * np.uint32(40503) >> 12) % VALUES[dtype]
    if dtype == "bfloat16":
        return scattered * members + members // 2
    return scattered * sum(member % 4 + 1 for member in range(members)) + members * (members - 1) // 2


def tolerance(wire_dtype: str, ranks: int) -> float:
    """Returns by how much a sum may be off (docs/internals/fixed_point.md): nothing, unless it travels on few bits."""
    if wire_dtype == "full":
        return 0.0
    largest = (2 ** (int(wire_dtype.removeprefix("int")) - 1) - 1) // ranks
    return ranks * 2 * (4 * VALUES["float32"] + ranks) / largest
