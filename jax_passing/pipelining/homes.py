"""Knows the homes of a pipeline's parameters: the rows of the mesh where each of them lies."""

import functools
import itertools
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_passing.errors import UsageError
from jax_passing.partitioning.arrays import bytes_of, weak_shape_of
from jax_passing.partitioning.plan import Plan, sum_of
from jax_passing.partitioning.running import needed, part_of
from jax_passing.partitioning.stages import Piece
from jax_passing.partitioning.traced_model import Builder
from jax_passing.pipelining.by_row import REMEDY, ByRow, Home
from jax_passing.pipelining.runner import Runner, widened
from jax_passing.pipelining.sending import elsewhere, is_here, mesh_of, put, send


class Homes:
    """Moves parameters and gradients between their homes and the stages.

    A parameter's home is the row of the first stage that uses it. Parameters that no stage uses are with the first
    stage.

    Attributes:
      rows: for each row of the mesh, the sharding of arrays that are the same on all of its devices.
      of_params: by parameter that is trained, its home. Lists of gradients, and of what an optimiser makes for
        parameters, are of these parameters; in their trees None stands for those that are frozen.
      everywhere: the home of values that all rows have.
    """

    def __init__(self, plan: Plan, mesh: Mesh, runners: Sequence[Runner], specs: Sequence[PartitionSpec]):
        """`specs`: by leaf of the parameters."""
        self._plan = plan
        self._runners = runners
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        self._spans_processes = not self._everywhere.is_fully_addressable
        first_users = [runners[0]] * len(specs)
        for runner in reversed(runners):
            for piece in runner.passes.stage.pieces:
                first_users[piece.leaf] = runner
        self._shardings = [NamedSharding(runner.mesh, spec) for runner, spec in zip(first_users, specs, strict=True)]
        self.rows = list(dict.fromkeys(runner.same for runner in runners))
        row_of_mesh = {row.mesh: number for number, row in enumerate(self.rows)}
        paths = jax.tree_util.tree_leaves_with_path(plan.params_tree.unflatten(self._shardings))
        self.of_params = [
            Home(jax.tree_util.keystr(path) or "params", (row_of_mesh[home.mesh],))
            for (path, home), is_frozen in zip(paths, plan.frozen, strict=True)
            if not is_frozen
        ]
        self.everywhere = Home("a value that all stages have", tuple(range(len(self.rows))))
        self._numbers: dict[Any, ByRow] = {}

    def place(self, params: Any) -> Any:
        plan = self._plan
        if jax.tree.structure(params) == plan.params_tree:  # in which `...` is as in `abstract`
            given = zip(jax.tree.leaves(params), plan.params_shapes, self._shardings, strict=True)
            params = jax.tree.unflatten(
                jax.tree.structure(params),
                [elsewhere(shape, home) if leaf is ... and not is_here(home) else leaf for leaf, shape, home in given],
            )
        leaves = plan.leaves_of_params(params)
        return self._plan.params_tree.unflatten(map(put, leaves, self._shardings))

    def init(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Computes each row's parameters on the row, by programs that have only the operations that these need."""
        closed, made = jax.make_jaxpr(function, return_shape=True)(*arguments)
        shapes = self._plan.leaves_of_params(made)
        builder = Builder()
        inputs = [builder.new(var.aval) for var in closed.jaxpr.invars]
        outputs = builder.inline(closed.jaxpr, closed.consts, inputs)
        leaves: list[Any] = [None] * len(shapes)
        for row in self.rows:
            own = [number for number, home in enumerate(self._shardings) if home.mesh == row.mesh]
            if not is_here(row):
                for number in own:
                    leaves[number] = elsewhere(shapes[number], self._shardings[number])
                continue
            given = [put(leaf, row) for leaf in jax.tree.leaves(arguments)]
            for group in _groups(own, [bytes_of(shape) for shape in shapes]):
                wanted = [outputs[number] for number in group]
                part = part_of(needed(builder.operations, wanted), wanted, builder.constants)
                program = jax.jit(
                    lambda arrays, part=part: part(arrays), out_shardings=[self._shardings[number] for number in group]
                )
                arrays = jax.block_until_ready(program([given[value] for value in part.inputs]))
                for number, array in zip(group, arrays, strict=True):
                    leaves[number] = array
        return self._plan.params_tree.unflatten(leaves)

    @property
    def abstract(self) -> Any:
        """Returns the parameters' shapes, each with the sharding that it has at home; `...` for those that have no part
        in this process."""
        return self._plan.params_tree.unflatten(
            jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=home) if is_here(home) else ...
            for shape, home in zip(self._plan.params_shapes, self._shardings, strict=True)
        )

    def check_placed(self, params: Sequence[Any]) -> None:
        """Raises UsageError if the mesh spans several processes and the parameters aren't at home."""
        if not self._spans_processes:
            return
        for leaf, home in zip(params, self._shardings, strict=True):
            if not isinstance(leaf, jax.Array) or leaf.sharding.device_set != home.device_set:
                raise UsageError(
                    "The mesh spans several processes, and the parameters aren't on their stages' devices: call "
                    "params = step.place(params) before the first step, in every process."
                )

    def held_by(self, runner: Runner, params: Sequence[Any]) -> list[jax.Array]:
        """Returns the pieces of parameters that a stage holds, on its devices."""
        pieces = zip(runner.passes.stage.pieces, runner.held, strict=True)
        if not self._spans_processes:
            return [jax.device_put(piece.of(params[piece.leaf]), sharding) for piece, sharding in pieces]
        held = []
        for piece, sharding in pieces:
            leaf, home = params[piece.leaf], self._shardings[piece.leaf]
            # JAX must not compute with an array that has no part in this process: it may end the process.
            own = piece.of(leaf) if is_here(home) else elsewhere(piece.of(self._plan.params_shapes[piece.leaf]), home)
            held += send([own], mesh_of(home), [sharding])
        return held

    def gradients(self, sums: Sequence[Sequence[jax.Array]], params: Sequence[Any], *, is_wide: bool) -> Any:
        """Returns each gradient where its parameter lies. Stages that share a parameter send their parts there, where
        the parts are added up.

        `sums`: by stage, the gradients of the pieces that it holds. `is_wide`: whether these are in float32 if their
        parameters are narrower.
        """
        parts: list[list[tuple[Piece, jax.Array]]] = [[] for _ in params]
        for runner, own in zip(self._runners, sums, strict=True):
            for index, gradient in zip(runner.passes.trained, own, strict=True):
                piece = runner.passes.stage.pieces[index]
                home = self._shardings[piece.leaf]
                parts[piece.leaf] += [(piece, one) for one in send([gradient], runner.mesh, [home])]
        gradients = []
        plan = self._plan
        pairs = zip(params, parts, plan.params_shapes, self._shardings, plan.frozen, strict=True)
        for leaf, of_leaf, shape, home, is_frozen in pairs:
            if is_frozen:
                continue
            shape = widened(shape) if is_wide else shape
            wanted = leaf.sharding if isinstance(leaf, jax.Array) else self._everywhere
            # An array that has no part in this process mustn't meet one that has: JAX would end the process.
            gradients.append(put(sum_of(of_leaf, shape), wanted) if is_here(home) else elsewhere(shape, wanted))
        return self.whole(gradients)

    def leaves(self, tree: Any, remedy: str = REMEDY) -> list[Any]:
        """Lists the leaves of a tree that an optimiser made, of trained parameters. Raises UsageError if it isn't like
        the parameters'."""
        try:
            leaves = self._plan.params_tree.flatten_up_to(tree)
            return [leaf for leaf, is_frozen in zip(leaves, self._plan.frozen, strict=True) if not is_frozen]
        except ValueError as error:
            raise UsageError(
                f"This tree isn't like that of the parameters: it is {_text(jax.tree.structure(tree))}, theirs is "
                f"{_text(self._plan.params_tree)}. {remedy}"
            ) from error

    def arrays(self, tree: Any) -> list[Any]:
        """Lists the leaves of a tree of arrays that a user gives, of trained parameters. Raises UsageError if JAX
        traces them."""
        leaves = self.leaves(tree, "Give gradients and parameters as the step takes and returns them.")
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            raise UsageError(
                "The parameters lie on several stages' devices, and one program can't be on all of them: call the "
                "optimiser that by_stage made outside of jax.jit. It has a jitted program for each stage."
            )
        return leaves

    def whole(self, leaves: Sequence[Any], frozen: Any = None) -> Any:
        """Makes a tree of leaves of trained parameters; `frozen` stands for the others."""
        given = iter(leaves)
        return self._plan.params_tree.unflatten(frozen if one else next(given) for one in self._plan.frozen)

    def by_row(self, leaves: Sequence[Any]) -> list[list[Any]]:
        """Returns the leaves once for each row, with None for those that lie on other rows."""
        return [
            [leaf if row in home.rows else None for leaf, home in zip(leaves, self.of_params, strict=True)]
            for row in range(len(self.rows))
        ]

    def global_norm(self, gradients: Any) -> jax.Array:
        """Returns float32[], the norm of all gradients, computed on each row."""
        return self._of_all(norm_of, gradients)

    def all_finite(self, gradients: Any) -> jax.Array:
        """Returns bool[], whether all elements are finite, computed on each row."""
        return self._of_all(_all_finite, gradients)

    def _of_all(self, function: Callable[[Sequence[Any]], Any], gradients: Any) -> jax.Array:
        leaves = self.arrays(gradients)
        if not self._spans_processes:  # else they were placed, as the step checks
            homes = itertools.compress(self._shardings, (not one for one in self._plan.frozen))
            leaves = list(map(jax.device_put, leaves, homes))
        shapes = [weak_shape_of(leaf) for leaf in leaves]
        if (key := (function, *shapes)) not in self._numbers:
            self._numbers[key] = ByRow(
                lambda leaves: [function(leaves)], shapes, self.of_params, [self.everywhere], self.rows
            )
        return next(results[0] for results in self._numbers[key](self.by_row(leaves)) if results)


def _groups(numbers: Sequence[int], sizes: Sequence[float]) -> list[list[int]]:
    """Divides leaves so that a group has at most as many bytes as the largest leaf. A program makes its leaves at once,
    and random bits and the like take memory for all of them."""
    most = max((sizes[number] for number in numbers), default=0.0)
    groups: list[list[int]] = []
    held = most
    for number in numbers:
        if held + sizes[number] > most:
            groups.append([])
            held = 0.0
        groups[-1].append(number)
        held += sizes[number]
    return groups


def _text(tree: Any) -> str:
    return textwrap.shorten(str(tree), 200)


def _all_finite(leaves: Sequence[Any]) -> Any:
    return functools.reduce(jnp.logical_and, (jnp.all(jnp.isfinite(leaf)) for leaf in leaves), jnp.bool_(True))


def norm_of(leaves: Sequence[Any]) -> Any:
    """Returns float32[], the square root of the sum of all elements' squares."""
    wide = [leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)) for leaf in leaves]
    squares = [jnp.sum(jnp.square(jnp.abs(leaf))).astype(jnp.float32) for leaf in wide]
    return jnp.sqrt(sum(squares, start=jnp.zeros((), jnp.float32)))
