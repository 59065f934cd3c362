"""A `Plan` describes a model as stages, and what they cost."""

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_passing.errors import UsageError
from jax_passing.partitioning.memory import Chain
from jax_passing.partitioning.stages import Output, Piece, Stage, put_together


@dataclass(frozen=True)
class StageFacts:
    """The costs of a stage are collected here.

    Attributes:
      location: the module path and source line where it begins.
      compute_s: time of the forward and backward pass of one microbatch.
      forward_s: time of the forward pass alone.
      again_s: the part of the backward pass in which it computes its forward pass again.
      busy_s: time of both passes, with sending and receiving.
      flops: operations of both passes.
      params: number of elements of its parameters.
      memory_bytes: parameters, gradients, the optimiser's state, stashes, and gradients of its largest operation.
      sent_bytes, sent_count: bytes and number of arrays that go to the next stage in a forward pass.
    """

    location: str
    compute_s: float
    forward_s: float
    again_s: float
    busy_s: float
    flops: float
    params: int
    memory_bytes: float
    sent_bytes: float
    sent_count: int


@dataclass(frozen=True)
class Plan:
    """Describes a model as stages, each a function; see `jax_passing.partitioning.stages.Stage` for how to call one.

    Attributes:
      stages: pure functions.
      facts: the cost of each stage.
      params_tree, params_shapes: structure and leaves of the parameters.
      batch_tree, batch_shapes: structure and leaves of one microbatch.
      frozen: by leaf of the parameters, whether it isn't trained: its gradient is None.
      notes: sentences on what would make the slowest stage faster, or the bytes between stages fewer.
    """

    stages: tuple[Stage, ...]
    facts: tuple[StageFacts, ...]
    params_tree: Any
    params_shapes: tuple[jax.ShapeDtypeStruct, ...]
    batch_tree: Any
    batch_shapes: tuple[jax.ShapeDtypeStruct, ...]
    frozen: tuple[bool, ...]
    _chain: Chain
    _cuts: tuple[int, ...]
    _outputs_tree: Any
    _has_aux: bool
    notes: tuple[str, ...] = ()

    @property
    def bottleneck(self) -> float:
        """Returns the slowest stage's time, divided by the mean of all stages' times."""
        times = [facts.busy_s for facts in self.facts]
        return max(times) * len(times) / sum(times) if sum(times) else 1.0

    def split(self, params: Any) -> list[dict[str, Any]]:
        """Returns the parameters that each stage holds. Each stage that uses a tied parameter holds it."""
        leaves = self.leaves_of_params(params)
        return [stage.held(leaves) for stage in self.stages]

    def merge(self, held: Sequence[Mapping[str, Any]], params: Any) -> Any:
        """Puts the arrays that the stages hold into the parameters.

        If several stages hold a tied parameter, or the same row, the first one's is taken. They hold the same as long
        as each is updated by the whole gradient, which `merge_gradients` adds up from the stages' parts.

        `params`: the parameters before; those that no stage uses stay as they are.
        """
        leaves = self.leaves_of_params(params)
        for stage, arrays in reversed(list(zip(self.stages, held, strict=True))):  # so that the first one's stays
            for piece in stage.pieces:
                leaves[piece.leaf] = _replaced(leaves[piece.leaf], piece, arrays[piece.name])
        return jax.tree.unflatten(self.params_tree, leaves)

    def merge_gradients(self, held: Sequence[Mapping[str, Any]]) -> Any:
        """Returns gradients shaped like the parameters: those of tied parameters are added up, those of parameters
        that no stage uses are zeros, and those of frozen ones None."""
        pieces: list[list[tuple[Piece, Any]]] = [[] for _ in self.params_shapes]
        for stage, arrays in zip(self.stages, held, strict=True):
            for piece in stage.pieces:
                if piece.is_trained:
                    pieces[piece.leaf].append((piece, arrays[piece.name]))
        leaves = [
            None if is_frozen else sum_of(own, shape)
            for own, shape, is_frozen in zip(pieces, self.params_shapes, self.frozen, strict=True)
        ]
        return jax.tree.unflatten(self.params_tree, leaves)

    def value_and_grad(self, params: Any, batch: Any) -> Any:
        """Computes what `jax.value_and_grad` of the loss does, stage by stage: first all forward passes, then all
        backward passes.

        Pipelines do the same, here on one device and with one microbatch. Raises UsageError if the parameters or
        the batch aren't those that the plan was made for.
        """
        _check("The leaves of the batch", batch, self.batch_tree, self.batch_shapes)
        carried: list[Any] = []
        outputs: list[tuple[Output, Any]] = []
        backs = []
        for stage, held in zip(self.stages, self.split(params), strict=True):
            carried, own, back = stage.vjp(held, carried, batch)
            outputs += zip(stage.outputs, own, strict=True)
            backs.append(back)
        gradients: list[Any] = []
        coming: list[Any] = []
        for back in reversed(backs):
            held, coming = back(coming)
            gradients.append(held)
        return self.result(outputs), self.merge_gradients(gradients[::-1])

    def result(self, outputs: Sequence[tuple[Output, Any]]) -> Any:
        """Makes the loss, or (loss, aux), from the outputs that all stages have returned."""
        loss, aux = jax.tree.unflatten(self._outputs_tree, put_together(outputs))
        return (loss, aux) if self._has_aux else loss

    def leaves_of_params(self, params: Any) -> list[Any]:
        """Returns the leaves. Raises UsageError if these aren't the parameters that the plan was made for, or their
        shapes."""
        return _check("The parameters", params, self.params_tree, self.params_shapes)

    def __str__(self) -> str:
        """Returns a table of the stages: work, memory, what they send to the next one, and where they begin; and the
        notes."""
        total_s = sum(facts.compute_s for facts in self.facts) or 1.0
        rows = [("stage", "work", "FLOP", "parameters", "memory", "sends", "arrays", "begins at")]
        rows += [
            (
                str(number),
                f"{100 * facts.compute_s / total_s:.1f} %",
                _short(facts.flops),
                _short(facts.params),
                f"{_short(facts.memory_bytes)}B",
                f"{_short(facts.sent_bytes)}B" if facts.sent_count else "",
                str(facts.sent_count or ""),
                facts.location,
            )
            for number, facts in enumerate(self.facts)
        ]
        again = [
            f"Stage {number} computes {100 * facts.again_s / facts.forward_s:.0f} % of its forward pass again."
            for number, facts in enumerate(self.facts)
            if facts.again_s
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
        lines = [f"{len(self.facts)} stages, the slowest takes {self.bottleneck:.3f} of their mean"]
        for *cells, location in rows:
            lines.append("  ".join([*map(str.rjust, cells, widths), location]))
        return "\n".join([*lines, *again, *self.notes])

    def plot(self) -> Any:
        """Draws a Figure of matplotlib, which has to be installed.

        It shows, along the chain, the share of the work so far, the bytes that would cross a cut, and the cuts.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 5), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True)
        above.step(range(len(self._chain.compute_s)), np.cumsum(self._chain.compute_s) / self._chain.compute_s.sum())
        above.set_ylabel("share of the work so far")
        below.semilogy(np.maximum(self._chain.cut_bytes, 1.0))
        below.set_ylabel("bytes across a cut")
        below.set_xlabel("operation of the chain")
        for axes in (above, below):
            for position in self._cuts:
                axes.axvline(position, color="tab:red", linewidth=1)
        figure.suptitle(f"{len(self.facts)} stages, the slowest {self.bottleneck:.3f} of their mean")
        return figure


def _check(what: str, given: Any, tree: Any, shapes: Sequence[jax.ShapeDtypeStruct]) -> list[Any]:
    """Returns the leaves. Raises UsageError if they are others, with which stages would compute something else."""
    leaves, found = jax.tree.flatten(given)
    if found != tree:
        raise UsageError(f"{what} have another structure than those of the plan: {difference(found, tree)}.")
    for (path, leaf), wanted in zip(jax.tree_util.tree_leaves_with_path(given), shapes, strict=True):
        dtype, shape = jnp.result_type(leaf), list(np.shape(leaf))
        if dtype != wanted.dtype or shape != list(wanted.shape):
            raise UsageError(
                f"{what} differ from those of the plan in {jax.tree_util.keystr(path) or 'the only one'}: "
                f"{dtype}{shape} instead of {wanted.dtype}{list(wanted.shape)}. A plan is made for these shapes only."
            )
    return leaves


def difference(found: Any, wanted: Any) -> str:
    """Says where two structures first differ: a whole structure may have thousands of leaves."""
    paths, wanted_paths = (
        [
            jax.tree_util.keystr(path) or "one leaf"
            for path, _ in jax.tree_util.tree_leaves_with_path(tree.unflatten(range(tree.num_leaves)))
        ]
        for tree in (found, wanted)
    )
    for path, wanted_path in itertools.zip_longest(paths, wanted_paths, fillvalue="nothing"):
        if path != wanted_path:
            return f"{path} instead of {wanted_path}"
    return "the same paths, but other kinds of nodes (such as a tuple instead of a list)"


def _replaced(leaf: Any, piece: Piece, array: Any) -> Any:
    return array if piece.rows is None else jnp.asarray(leaf).at[piece.rows[0] : piece.rows[1]].set(array)


def sum_of(pieces: Sequence[tuple[Piece, Any]], shape: jax.ShapeDtypeStruct) -> Any:
    """Adds up the gradient of a parameter of this shape from the pieces that stages have of it."""
    if len(pieces) == 1 and pieces[0][0].rows is None:
        return pieces[0][1]
    return _added([array for _, array in pieces], tuple(piece for piece, _ in pieces), shape)


# One jitted program: zeros made outside of it would be on this process's own device, and can't meet an array of several
# processes.
@functools.partial(jax.jit, static_argnums=(1, 2))
def _added(arrays: Sequence[Any], pieces: Sequence[Piece], shape: jax.ShapeDtypeStruct) -> Any:
    leaf = jnp.zeros(shape.shape, shape.dtype)
    for piece, array in zip(pieces, arrays, strict=True):
        leaf = leaf + array if piece.rows is None else leaf.at[slice(*piece.rows)].add(array)
    return leaf


def _short(number: float) -> str:
    for unit in ("", "K", "M", "G", "T"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} P"
