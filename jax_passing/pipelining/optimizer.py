"""Optimisers of optax for parameters that lie on several stages' devices: a program for each stage."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from jax_passing.errors import PipelineError
from jax_passing.partitioning.program import no_mesh
from jax_passing.pipelining.sending import elsewhere, is_here, mesh_of, send


class Homes:
    """Where each parameter lies.

    Attributes:
      rows: for each row of the mesh, the sharding of what is the same on all of its devices.
    """

    def __init__(self, tree: Any, homes: Sequence[NamedSharding], rows: Sequence[NamedSharding]):
        """`homes`: by leaf of `tree`."""
        self._tree = tree
        self.rows = list(dict.fromkeys(rows))
        self._leaves_of = [[leaf for leaf, home in enumerate(homes) if home.mesh == row.mesh] for row in self.rows]

    def split(self, tree: Any) -> list[Any]:
        """By row, the same tree with None for what lies elsewhere: so names and masks mean what they meant."""
        leaves = self._tree.flatten_up_to(tree)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            raise PipelineError(
                "The parameters lie on several stages' devices, and one program can't be on all of them: call the "
                "optimiser that by_stage made outside of jax.jit. It has a jitted program for each stage."
            )
        trees = []
        for own in self._leaves_of:
            kept = [leaf if number in own else None for number, leaf in enumerate(leaves)]
            trees.append(jax.tree.unflatten(self._tree, kept))
        return trees

    def join(self, trees: Sequence[Any]) -> Any:
        leaves: list[Any] = [None] * self._tree.num_leaves
        for own, tree in zip(self._leaves_of, trees, strict=True):
            given = self._tree.flatten_up_to(tree)
            for leaf in own:
                leaves[leaf] = given[leaf]
        return jax.tree.unflatten(self._tree, leaves)

    def norms(self, gradients: Any) -> list[jax.Array]:
        """The norm of all gradients, once on each row."""
        squares = [
            _sum_of_squares(tree) if is_here(row) else elsewhere(_SCALAR, row)
            for row, tree in zip(self.rows, self.split(gradients), strict=True)
        ]
        norms = []
        for row in self.rows:
            sent = [send([square], mesh_of(home), [row])[0] for square, home in zip(squares, self.rows, strict=True)]
            norms.append(_root_of_sum(sent) if is_here(row) else elsewhere(_SCALAR, row))
        return norms


_SCALAR = jax.ShapeDtypeStruct((), jnp.float32)


@jax.jit
def _sum_of_squares(tree: Any) -> Any:
    leaves = [leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)) for leaf in jax.tree.leaves(tree)]
    return sum((jnp.sum(jnp.square(jnp.abs(leaf))) for leaf in leaves), start=jnp.zeros(())).astype(jnp.float32)


@jax.jit
def _root_of_sum(squares: Sequence[Any]) -> Any:
    return jnp.sqrt(sum(squares, start=jnp.zeros(())))


@jax.jit
def _clipped(tree: Any, norm: Any, max_norm: Any) -> Any:
    """As `optax.clip_by_global_norm` does."""
    return jax.tree.map(
        lambda leaf: jnp.where(norm < max_norm, leaf, (leaf / norm.astype(leaf.dtype)) * max_norm.astype(leaf.dtype)),
        tree,
    )


def by_stage(optimizer: Any, homes: Homes, max_norm: float | None) -> Any:
    """See `Pipeline.by_stage`. The state is a list: that of each row, and None for rows of other processes."""
    from optax import GradientTransformationExtraArgs, with_extra_args_support

    inner = with_extra_args_support(optimizer)
    update_one = jax.jit(inner.update)

    def init(params: Any) -> list[Any]:
        with no_mesh():
            trees = zip(homes.rows, homes.split(params), strict=True)
            return [inner.init(tree) if is_here(row) else None for row, tree in trees]

    def update(gradients: Any, state: Any, params: Any = None, **others: Any) -> tuple[Any, list[Any]]:
        trees = homes.split(gradients)
        held = [None] * len(trees) if params is None else homes.split(params)
        states: list[Any] = []
        with no_mesh():
            norms = homes.norms(gradients) if max_norm is not None else []
            for number, row in enumerate(homes.rows):
                if not is_here(row):
                    states.append(None)  # and the updates are somewhere else, as the gradients are
                    continue
                if max_norm is not None:
                    trees[number] = _clipped(trees[number], norms[number], jnp.float32(max_norm))
                own = jax.tree.map(lambda leaf, row=row: jax.device_put(leaf, row), others)
                trees[number], after = update_one(trees[number], state[number], held[number], **own)
                states.append(after)
        return homes.join(trees), states

    return GradientTransformationExtraArgs(init, update)
