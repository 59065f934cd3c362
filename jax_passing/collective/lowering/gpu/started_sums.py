"""The sums of one block that have started on GPUs, beside their order (../order.py)."""

from typing import Any

from jax.interpreters import mlir

from jax_passing.collective.lowering.order import BlockOrder, Turn
from jax_passing.collective.naming.sites import Site


class StartedSums:
    """Keeps what later calls of the block need to know of earlier ones."""

    def __init__(self) -> None:
        self._overlap_group = 0  # the number of its first call
        self._held: list[tuple[Any, Any]] = []  # of the calls held last: a sum, its type
        self._awaited: set[Any] = set()  # what calls were held until
        self._new: list[tuple[object, Any]] = []  # calls since take_newest_buckets: whose they are, int32[]

    @classmethod
    def of(cls, ctx: mlir.LoweringRuleContext) -> "StartedSums":
        """Returns those of the block that is being lowered."""
        started: StartedSums = BlockOrder.of(ctx).share(cls, cls)
        return started

    def overlap_group(self, turn: Turn, number: int) -> int:
        """Returns the number of the first of the calls that may be under way together with the one that has this turn.

        `number`: its own, among those of the module.
        """
        if turn.beside == 0:
            self._overlap_group = number
        return self._overlap_group

    def add(self, site: Site, token: Any) -> None:
        """Notes a call; `token` is int32[] that is there when it has started."""
        self._new.append((site.call_of_all_buckets, token))

    def take_newest_buckets(self) -> list[Any]:
        """Returns the int32[] of the buckets of the last sum, if they weren't taken before."""
        new, self._new = self._new, []
        return [token for whose, token in new if whose == new[-1][0]]

    def take_unawaited(self, tokens: list[Any]) -> list[Any]:
        """Returns those of `tokens` that weren't taken before."""
        new = [token for token in tokens if token not in self._awaited]
        self._awaited.update(new)
        return new

    def exchange_held(self, held: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Returns a sum, and its type, of each call that was held last, before those of `held` are."""
        before, self._held = self._held, held
        return before
