"""Optimisers of optax for parameters that lie on several stages' devices: a program for each stage."""

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from jax_passing.errors import PipelineError
from jax_passing.partitioning.program import no_mesh
from jax_passing.pipelining.by_row import REMEDY, ByRow, Place
from jax_passing.pipelining.sending import is_here, put


class Homes:
    """Where each parameter lies.

    Attributes:
      rows: for each row of the mesh, the sharding of what is the same on all of its devices.
      places: by parameter.
      everywhere: the place of what all rows have.
    """

    def __init__(self, tree: Any, homes: Sequence[NamedSharding], rows: Sequence[NamedSharding]):
        """`homes`: by leaf of `tree`."""
        self._tree = tree
        self.rows = list(dict.fromkeys(rows))
        row_of_mesh = {row.mesh: number for number, row in enumerate(self.rows)}
        paths = jax.tree_util.tree_leaves_with_path(tree.unflatten(homes))
        self.places = [Place(jax.tree_util.keystr(path) or "params", (row_of_mesh[home.mesh],)) for path, home in paths]
        self.everywhere = Place("what all stages have", tuple(range(len(self.rows))))
        self._norms: dict[Any, ByRow] = {}

    def leaves(self, tree: Any, remedy: str = REMEDY) -> list[Any]:
        """Lists the leaves of a tree that an optimiser made like the parameters'. Raises PipelineError if it isn't."""
        try:
            leaves: list[Any] = self._tree.flatten_up_to(tree)
        except ValueError as error:
            raise PipelineError(
                f"This tree isn't like that of the parameters: it is {_text(jax.tree.structure(tree))}, theirs is "
                f"{_text(self._tree)}. {remedy}"
            ) from error
        return leaves

    def arrays(self, tree: Any) -> list[Any]:
        """The same of what is no part of a program."""
        leaves = self.leaves(tree, "Give gradients and parameters as the step takes and returns them.")
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            raise PipelineError(
                "The parameters lie on several stages' devices, and one program can't be on all of them: call the "
                "optimiser that by_stage made outside of jax.jit. It has a jitted program for each stage."
            )
        return leaves

    def whole(self, leaves: Sequence[Any]) -> Any:
        return jax.tree.unflatten(self._tree, leaves)

    def by_row(self, leaves: Sequence[Any]) -> list[list[Any]]:
        """The same with None for what lies elsewhere."""
        return [
            [leaf if row in place.rows else None for leaf, place in zip(leaves, self.places, strict=True)]
            for row in range(len(self.rows))
        ]

    def global_norm(self, gradients: Any) -> jax.Array:
        """float32[], of all of them, on each row."""
        leaves = self.arrays(gradients)
        shapes = [_shape_of(leaf) for leaf in leaves]
        if (key := tuple(shapes)) not in self._norms:
            self._norms[key] = ByRow(lambda leaves: [_norm(leaves)], shapes, self.places, [self.everywhere], self.rows)
        by_row = self._norms[key](self.by_row(leaves))
        return next(results[0] for results in by_row if results)


def _text(tree: Any) -> str:
    return textwrap.shorten(str(tree), 200)


def _shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    aval = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _own(leaf: Any) -> Any:
    """The same on this process's devices alone, if all of the processes that have it have all of it."""
    is_global = isinstance(leaf, jax.Array) and not leaf.is_fully_addressable
    if is_global and leaf.is_fully_replicated and leaf.addressable_shards:
        return leaf.addressable_data(0)
    return leaf


def _norm(leaves: Sequence[Any]) -> Any:
    wide = [leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)) for leaf in leaves]
    squares = [jnp.sum(jnp.square(jnp.abs(leaf))).astype(jnp.float32) for leaf in wide]
    return jnp.sqrt(sum(squares, start=jnp.zeros((), jnp.float32)))


def _clipped(leaves: Sequence[Any], max_norm: float) -> list[Any]:
    """As `optax.clip_by_global_norm` does."""
    norm, most = _norm(leaves), jnp.float32(max_norm)
    return [jnp.where(norm < most, leaf, (leaf / norm.astype(leaf.dtype)) * most.astype(leaf.dtype)) for leaf in leaves]


class _State:
    """How the state of an optimiser lies: the state of a row is what `init` makes of the row's parameters.

    Attributes:
      places: by leaf of the whole state, that of all parameters.
      made: the leaves, of those of the parameters.
    """

    def __init__(self, init: Any, homes: Homes, shapes: Sequence[jax.ShapeDtypeStruct]):
        self._rows = homes.rows
        self._tree: Any
        with_paths, self._tree = jax.tree_util.tree_flatten_with_path(jax.eval_shape(init, homes.whole(shapes)))
        self._shapes = [_shape_of(leaf) for _, leaf in with_paths]
        states = [_of_row(init, homes.whole(own), row) for row, own in enumerate(homes.by_row(shapes))]
        self._trees: list[Any] = [jax.tree.structure(state) for state in states]
        number_of = {path: number for number, (path, _) in enumerate(with_paths)}
        paths = [[path for path, _ in jax.tree_util.tree_leaves_with_path(state)] for state in states]
        rows_of: dict[Any, list[int]] = {path: [] for path in number_of}
        for row, own in enumerate(paths):
            for path in own:
                rows_of.get(path, []).append(row)
        if not number_of.keys() >= set(itertools.chain(*paths)) or not all(rows_of.values()):
            raise PipelineError(
                "The state of this optimiser isn't the same tree for some of the parameters, without what belongs to "
                f"others, as for all of them: by_stage can't tell whose its parts are. {REMEDY}"
            )
        self._numbers = [[number_of[path] for path in own] for own in paths]
        self.places = [Place("state" + jax.tree_util.keystr(path), tuple(rows)) for path, rows in rows_of.items()]
        self.made = ByRow(
            lambda leaves: jax.tree.leaves(init(homes.whole(leaves))), shapes, homes.places, self.places, homes.rows
        )

    def by_row(self, state: Sequence[Any]) -> list[list[Any]]:
        """The leaves that each row has, in their places; None for others."""
        found = []
        for tree, numbers, own in zip(self._trees, self._numbers, state, strict=True):
            leaves: list[Any] = [None] * len(self.places)
            if own is not None:
                for number, leaf in zip(numbers, tree.flatten_up_to(own), strict=True):
                    leaves[number] = leaf
            found.append(leaves)
        return found

    def shapes(self, by_row: Sequence[Sequence[Any]]) -> list[jax.ShapeDtypeStruct]:
        """Tells the shapes of the whole state's leaves: today's where this process has one, else the first."""
        leaves = [next((leaf for leaf in several if leaf is not None), None) for several in zip(*by_row, strict=True)]
        return [shape if leaf is None else _shape_of(leaf) for leaf, shape in zip(leaves, self._shapes, strict=True)]

    def whole(self, leaves: Sequence[Any]) -> Any:
        return jax.tree.unflatten(self._tree, leaves)

    def leaves(self, state: Any) -> list[Any]:
        """Lists the leaves of the whole state."""
        leaves: list[Any] = self._tree.flatten_up_to(state)
        return leaves

    def states(self, results: Sequence[Mapping[int, Any]], first: int = 0) -> list[Any]:
        """By row, given results by index, of which the state's begin at `first`; None for rows of other processes."""
        return [
            jax.tree.unflatten(tree, [own[first + number] for number in numbers]) if is_here(row) else None
            for row, tree, numbers, own in zip(self._rows, self._trees, self._numbers, results, strict=True)
        ]


def _of_row(init: Any, params: Any, row: int) -> Any:
    """Shapes of a row's state; `params`: shapes, with None for what lies elsewhere."""
    try:
        return jax.eval_shape(init, params)
    except Exception as error:
        raise PipelineError(
            f"The optimiser's init fails for the parameters of row {row} of the mesh alone, with None for others: "
            f"{type(error).__name__}: {error}. {REMEDY}"
        ) from error


class _ByStage:
    """`init` and `update`, see `Pipeline.by_stage`. The state is a list: that of each row, and None for rows of other
    processes."""

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
                # The values are those of all parameters' init: one for a row's alone may count leaves otherwise, and
                # draw other numbers. It tells where they lie: zeros like a parameter lie as that does, if no program
                # makes them. What is like none lies anywhere: it is put to where the first update leaves it, or the
                # second one would be compiled anew.
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
        shapes = tuple(map(_shape_of, params))
        if shapes not in self._states:
            self._states[shapes] = _State(self._optimizer.init, self._homes, shapes)
        return self._states[shapes]

    def update(self, gradients: Any, state: Any, params: Any = None, **others: Any) -> tuple[Any, list[Any]]:
        homes = self._homes
        leaves = homes.arrays(gradients)
        held = [] if params is None else homes.arrays(params)
        other_leaves, other_tree = jax.tree.flatten(others)
        if any(map(callable, other_leaves)):
            raise PipelineError(
                f"Among {', '.join(others)} is a function. One that evaluates the loss, as for a line search, takes "
                f"all parameters. {REMEDY}"
            )
        with no_mesh():
            state_leaves, state_tree = jax.tree.flatten(state)
            avals = map(jax.typeof, (*leaves, *state_leaves, *held, *other_leaves))
            key = (*((one.shape, one.dtype, one.weak_type) for one in avals), state_tree, len(held), other_tree)
            if key not in self._updates:
                known = self._state_of(held or leaves)
                shapes = [*map(_shape_of, leaves), *known.shapes(known.by_row(state))]
                shapes += map(_shape_of, (*held, *other_leaves))
                self._updates[key] = known, self._made(known, shapes, bool(held), other_tree)
            known, update = self._updates[key]
            states = known.by_row(state)
            others_by_row = [
                [put(leaf, row) if is_here(row) else None for leaf in map(_own, other_leaves)] for row in homes.rows
            ]
            held_by_row = homes.by_row(held) if held else [[]] * len(homes.rows)
            pieces = zip(homes.by_row(leaves), states, held_by_row, others_by_row, strict=True)
            results = update([list(itertools.chain(*own)) for own in pieces])
        # Rows of other processes have nothing here, and their updates are somewhere else, as their gradients are.
        updates = [
            results[place.rows[0]].get(index, leaf)
            for index, (place, leaf) in enumerate(zip(homes.places, leaves, strict=True))
        ]
        return homes.whole(updates), known.states(results, len(leaves))

    def _made(self, known: _State, shapes: Sequence[Any], has_params: bool, other_tree: Any) -> ByRow:
        homes = self._homes
        sizes = [len(homes.places), len(known.places), len(homes.places) if has_params else 0, other_tree.num_leaves]
        ends = list(itertools.accumulate(sizes))

        def update(given: list[Any]) -> list[Any]:
            """The updates, and the state after them."""
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

        places = [*homes.places, *known.places, *(homes.places if has_params else ())]
        places += [homes.everywhere] * other_tree.num_leaves
        return ByRow(update, shapes, places, [*homes.places, *known.places], homes.rows)


def by_stage(optimizer: Any, homes: Homes, max_norm: float | None) -> Any:
    from optax import GradientTransformation, GradientTransformationExtraArgs, with_extra_args_support

    # Anything else, such as optax.MultiSteps, would lose further arguments by it, also if it takes some.
    if isinstance(optimizer, GradientTransformation):
        optimizer = with_extra_args_support(optimizer)
    made = _ByStage(optimizer, homes, max_norm)
    return GradientTransformationExtraArgs(made.init, made.update)
