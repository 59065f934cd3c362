"""Runs optimisers of optax on parameters that lie on several stages' devices: as a program for each stage."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_passing.errors import UsageError, gist
from jax_passing.partitioning.arrays import no_mesh, weak_shape_of
from jax_passing.pipelining.by_row import REMEDY, ByRow, Home
from jax_passing.pipelining.homes import Homes, norm_of
from jax_passing.pipelining.sending import is_here, put


def _own(leaf: Any) -> Any:
    """Returns the leaf on this process's devices alone, if each process that has a part of it has all of it."""
    is_global = isinstance(leaf, jax.Array) and not leaf.is_fully_addressable
    if is_global and leaf.is_fully_replicated and leaf.addressable_shards:
        return leaf.addressable_data(0)
    return leaf


def _clipped(leaves: Sequence[Any], max_norm: float) -> list[Any]:
    """Scales the leaves as `optax.clip_by_global_norm` does."""
    norm, most = norm_of(leaves), jnp.float32(max_norm)
    return [jnp.where(norm < most, leaf, (leaf / norm.astype(leaf.dtype)) * most.astype(leaf.dtype)) for leaf in leaves]


class Unchanged:
    """Stands for the update of a frozen parameter: with it, `optax.apply_updates` leaves the parameter as it is."""

    __array_ufunc__ = None  # or NumPy would add it to each element

    def __radd__(self, parameter: Any) -> Any:
        return parameter

    __add__ = __radd__


class _State:
    """Divides the state of an optimiser among the rows: a row's state has the leaves that `init` makes for the row's
    parameters alone.

    Attributes:
      homes: by leaf of the whole state, which is the state of all parameters.
      made: makes the leaves of the whole state from the parameters.
    """

    def __init__(self, init: Any, homes: Homes, shapes: Sequence[jax.ShapeDtypeStruct]):
        self._rows = homes.rows
        self._tree: Any
        with_paths, self._tree = jax.tree_util.tree_flatten_with_path(jax.eval_shape(init, homes.whole(shapes)))
        self._shapes = [weak_shape_of(leaf) for _, leaf in with_paths]
        states = [_of_row(init, homes.whole(own), row) for row, own in enumerate(homes.by_row(shapes))]
        self._trees: list[Any] = [jax.tree.structure(state) for state in states]
        number_of = {path: number for number, (path, _) in enumerate(with_paths)}
        paths = [[path for path, _ in jax.tree_util.tree_leaves_with_path(state)] for state in states]
        rows_of: dict[Any, list[int]] = {path: [] for path in number_of}
        for row, own in enumerate(paths):
            for path in own:
                rows_of.get(path, []).append(row)
        if not number_of.keys() >= set(itertools.chain(*paths)) or not all(rows_of.values()):
            raise UsageError(
                "The state of this optimiser for some of the parameters isn't a part of its state for all of them, so "
                f"by_stage can't tell which parameters its leaves belong to. {REMEDY}"
            )
        self._numbers = [[number_of[path] for path in own] for own in paths]
        self.homes = [Home("state" + jax.tree_util.keystr(path), tuple(rows)) for path, rows in rows_of.items()]
        self.made = ByRow(
            lambda leaves: jax.tree.leaves(init(homes.whole(leaves))), shapes, homes.of_params, self.homes, homes.rows
        )

    def by_row(self, state: Sequence[Any]) -> list[list[Any]]:
        """Returns the leaves of the whole state once for each row, with None for those that the row doesn't have."""
        found = []
        for tree, numbers, own in zip(self._trees, self._numbers, state, strict=True):
            leaves: list[Any] = [None] * len(self.homes)
            if own is not None:
                for number, leaf in zip(numbers, tree.flatten_up_to(own), strict=True):
                    leaves[number] = leaf
            found.append(leaves)
        return found

    def shapes(self, by_row: Sequence[Sequence[Any]]) -> list[jax.ShapeDtypeStruct]:
        """Returns the shapes of the whole state's leaves: the present shape where this process has the leaf, else the
        first one."""
        leaves = [next((leaf for leaf in several if leaf is not None), None) for several in zip(*by_row, strict=True)]
        return [
            shape if leaf is None else weak_shape_of(leaf) for leaf, shape in zip(leaves, self._shapes, strict=True)
        ]

    def whole(self, leaves: Sequence[Any]) -> Any:
        return jax.tree.unflatten(self._tree, leaves)

    def leaves(self, state: Any) -> list[Any]:
        """Lists the leaves of the whole state."""
        return self._tree.flatten_up_to(state)

    def states(self, results: Sequence[Mapping[int, Any]], first: int = 0) -> list[Any]:
        """Returns the state of each row; None for rows of other processes.

        `results`: for each row the results by index, among which the state's leaves begin at `first`.
        """
        return [
            jax.tree.unflatten(tree, [own[first + number] for number in numbers]) if is_here(row) else None
            for row, tree, numbers, own in zip(self._rows, self._trees, self._numbers, results, strict=True)
        ]


def _of_row(init: Any, params: Any, row: int) -> Any:
    """Returns the shapes of a row's state. `params`: shapes, with None for parameters that lie on other rows."""
    try:
        return jax.eval_shape(init, params)
    except Exception as error:
        raise UsageError(
            f"The optimiser's init fails for the parameters of row {row} of the mesh alone, with None for all others: "
            f"{gist(error)}. {REMEDY}"
        ) from error


class _StagewiseOptimizer:
    """Is the optimiser that `Pipeline.by_stage` makes. Its state is a list with the state of each row, and None for
    rows of other processes."""

    def __init__(self, optimizer: Any, homes: Homes, max_norm: float | None):
        self._optimizer = optimizer
        self._homes = homes
        self._max_norm = max_norm
        self._states: dict[Any, _State] = {}
        self._updates: dict[Any, tuple[_State, ByRow]] = {}

    def init(self, params: Any) -> list[Any]:
        leaves = self._homes.arrays(params)
        with no_mesh():
            known = self._state_of(leaves)
            made = known.states(known.made(self._homes.by_row(leaves)))
            if known.made.sends:
                return made
            states: list[Any] = []
            for row, own, values in zip(self._homes.rows, self._homes.by_row(leaves), made, strict=True):
                # The values come from the init of all parameters: the init of a row's parameters alone might count the
                # leaves otherwise and draw other random numbers. It only tells how the leaves are sharded: zeros like a
                # parameter are sharded as that is, if no program makes them. Leaves that are like no parameter are put
                # where the first update leaves them, or the second update would be compiled anew.
                like = self._optimizer.init(self._homes.whole(own)) if is_here(row) else None
                states.append(
                    jax.tree.map(
                        lambda one, value, row=row: put(
                            value, one.sharding if getattr(one, "committed", False) else row
                        ),
                        like,
                        values,
                    )
                )
            return states

    def _state_of(self, params: Sequence[Any]) -> _State:
        shapes = tuple(map(weak_shape_of, params))
        if shapes not in self._states:
            self._states[shapes] = _State(self._optimizer.init, self._homes, shapes)
        return self._states[shapes]

    def update(self, gradients: Any, state: Any, params: Any = None, **others: Any) -> tuple[Any, list[Any]]:
        homes = self._homes
        leaves = homes.arrays(gradients)
        held = [] if params is None else homes.arrays(params)
        other_leaves, other_tree = jax.tree.flatten(others)
        if any(map(callable, other_leaves)):
            raise UsageError(
                f"Among {', '.join(others)} is a function. A function that evaluates the loss, as a line search needs, "
                f"takes the parameters of all stages. {REMEDY}"
            )
        with no_mesh():
            state_leaves, state_tree = jax.tree.flatten(state)
            avals = map(jax.typeof, (*leaves, *state_leaves, *held, *other_leaves))
            key = (*((one.shape, one.dtype, one.weak_type) for one in avals), state_tree, len(held), other_tree)
            if key not in self._updates:
                known = self._state_of(held or leaves)
                shapes = [*map(weak_shape_of, leaves), *known.shapes(known.by_row(state))]
                shapes += map(weak_shape_of, (*held, *other_leaves))
                self._updates[key] = known, self._made(known, shapes, bool(held), other_tree)
            known, update = self._updates[key]
            states = known.by_row(state)
            others_by_row = [
                [put(leaf, row) if is_here(row) else None for leaf in map(_own, other_leaves)] for row in homes.rows
            ]
            held_by_row = homes.by_row(held) if held else [[]] * len(homes.rows)
            pieces = zip(homes.by_row(leaves), states, held_by_row, others_by_row, strict=True)
            results = update([list(itertools.chain(*own)) for own in pieces])
        # Updates of rows of other processes have no part here, and neither have the gradients, which stand for them.
        updates = [
            results[home.rows[0]].get(index, leaf)
            for index, (home, leaf) in enumerate(zip(homes.of_params, leaves, strict=True))
        ]
        return homes.whole(updates, frozen=Unchanged()), known.states(results, len(leaves))

    def _made(self, known: _State, shapes: Sequence[Any], has_params: bool, other_tree: Any) -> ByRow:
        homes = self._homes
        params_count = len(homes.of_params)
        sizes = [params_count, len(known.homes), params_count if has_params else 0, other_tree.num_leaves]
        ends = list(itertools.accumulate(sizes))

        def update(given: list[Any]) -> list[Any]:
            """Returns the updates, and the state after them."""
            gradients, state, params, others = (given[end - size : end] for size, end in zip(sizes, ends, strict=True))
            if self._max_norm is not None:
                gradients = _clipped(gradients, self._max_norm)
            updates, after = self._optimizer.update(
                homes.whole(gradients),
                known.whole(state),
                homes.whole(params) if has_params else None,
                **jax.tree.unflatten(other_tree, others),
            )
            return [*homes.leaves(updates), *known.leaves(after)]

        results = [*homes.of_params, *known.homes]
        arguments = [*results, *(homes.of_params if has_params else ()), *[homes.everywhere] * other_tree.num_leaves]
        return ByRow(update, shapes, arguments, results, homes.rows)


def stagewise_optimizer(optimizer: Any, homes: Homes, max_norm: float | None) -> Any:
    from optax import GradientTransformation, GradientTransformationExtraArgs, with_extra_args_support

    # with_extra_args_support would drop further arguments of anything else, such as optax.MultiSteps, which takes some.
    if isinstance(optimizer, GradientTransformation):
        optimizer = with_extra_args_support(optimizer)
    made = _StagewiseOptimizer(optimizer, homes, max_norm)
    return GradientTransformationExtraArgs(made.init, made.update)
