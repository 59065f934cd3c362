"""A model as stages, and what they cost."""

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_passing.errors import PartitionError
from jax_passing.partitioning.search import Chain
from jax_passing.partitioning.stages import Output, Piece, Stage, put_together


@dataclass(frozen=True)
class StageFacts:
    """What a stage costs.

    Attributes:
      place: where it begins: module path and source line.
      compute_s: forward and backward pass of one microbatch.
      forward_s: its forward pass only.
      busy_s: the same with what is sent and received.
      flops: forward and backward.
      params: elements of parameters.
      memory_bytes: parameters, gradients, optimiser's state and stashes.
      sent_bytes, sent_count: what crosses to the next stage, forwards, and in how many arrays.
    """

    place: str
    compute_s: float
    forward_s: float
    busy_s: float
    flops: float
    params: int
    memory_bytes: float
    sent_bytes: float
    sent_count: int


@dataclass(frozen=True)
class Plan:
    """A model as stages, which `stages[i]` computes; see `stages.Stage` for how to call one.

    Attributes:
      stages: pure functions.
      facts: by stage.
      params_tree, params_shapes: structure and leaves of the parameters.
      batch_tree, batch_shapes: of what one microbatch has.
      notes: sentences on what keeps the slowest stage from being faster.
    """

    stages: tuple[Stage, ...]
    facts: tuple[StageFacts, ...]
    params_tree: Any
    params_shapes: tuple[jax.ShapeDtypeStruct, ...]
    batch_tree: Any
    batch_shapes: tuple[jax.ShapeDtypeStruct, ...]
    _chain: Chain
    _cuts: tuple[int, ...]
    _outputs_tree: Any
    _has_aux: bool
    notes: tuple[str, ...] = ()

    @property
    def bottleneck(self) -> float:
        """The slowest stage's time over the mean of all."""
        times = [facts.busy_s for facts in self.facts]
        return max(times) * len(times) / sum(times) if sum(times) else 1.0

    def split(self, params: Any) -> list[dict[str, Any]]:
        """By stage what it holds of the parameters. Tied parameters are with each stage that uses them."""
        leaves = self.leaves_of_params(params)
        return [stage.held(leaves) for stage in self.stages]

    def merge(self, held: Sequence[Mapping[str, Any]], params: Any) -> Any:
        """The parameters, with what the stages hold in their place.

        Several stages hold a tied parameter, or a row that several of them use, and the first one's is taken. They hold
        the same as long as each is updated by the whole gradient, which `merge_gradients` makes of the stages' parts.

        `params`: as they were; what no stage uses stays as it is.
        """
        leaves = self.leaves_of_params(params)
        for stage, arrays in reversed(list(zip(self.stages, held, strict=True))):  # so the first one's is what stays
            for piece in stage.pieces:
                leaves[piece.leaf] = _replaced(leaves[piece.leaf], piece, arrays[piece.name])
        return jax.tree.unflatten(self.params_tree, leaves)

    def merge_gradients(self, held: Sequence[Mapping[str, Any]]) -> Any:
        """Gradients shaped like the parameters: those of tied ones are added up, and what no stage uses has zeros."""
        pieces: list[list[tuple[Piece, Any]]] = [[] for _ in self.params_shapes]
        for stage, arrays in zip(self.stages, held, strict=True):
            for piece in stage.pieces:
                pieces[piece.leaf].append((piece, arrays[piece.name]))
        leaves = [sum_of(own, shape) for own, shape in zip(pieces, self.params_shapes, strict=True)]
        return jax.tree.unflatten(self.params_tree, leaves)

    def value_and_grad(self, params: Any, batch: Any) -> Any:
        """As `jax.value_and_grad` of the loss, stage by stage: first all forwards, then all backwards.

        This is what pipelines do, on one device and with one microbatch. Raises PartitionError if parameters or batch
        aren't those that the plan was made for.
        """
        _check("The leaves of the batch", batch, self.batch_tree, self.batch_shapes)
        carried: list[Any] = []
        everything: list[tuple[Output, Any]] = []
        backs = []
        for stage, held in zip(self.stages, self.split(params), strict=True):
            carried, left, back = stage.vjp(held, carried, batch)
            everything += zip(stage.outputs, left, strict=True)
            backs.append(back)
        gradients: list[Any] = []
        coming: list[Any] = []
        for back in reversed(backs):
            held, coming = back(coming)
            gradients.append(held)
        return self.result(everything), self.merge_gradients(gradients[::-1])

    def result(self, left: Sequence[tuple[Output, Any]]) -> Any:
        """The loss, and aux if the loss has it, from what all stages have left."""
        loss, aux = jax.tree.unflatten(self._outputs_tree, put_together(left))
        return (loss, aux) if self._has_aux else loss

    def leaves_of_params(self, params: Any) -> list[Any]:
        """Raises PartitionError if these aren't the parameters that the plan was made for, or their shapes."""
        return _check("The parameters", params, self.params_tree, self.params_shapes)

    def __str__(self) -> str:
        """A table: what each stage does and holds, what crosses to the next one, and where it begins; and the notes."""
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
                facts.place,
            )
            for number, facts in enumerate(self.facts)
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
        lines = [f"{len(self.facts)} stages, the slowest takes {self.bottleneck:.3f} of their mean"]
        for *cells, place in rows:
            lines.append("  ".join([*map(str.rjust, cells, widths), place]))
        return "\n".join([*lines, *self.notes])

    def plot(self) -> Any:
        """A Figure of matplotlib, which has to be installed.

        Along the chain it shows the share of the work so far, what would cross a cut there, and the cuts.
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
            for place in self._cuts:
                axes.axvline(place, color="tab:red", linewidth=1)
        figure.suptitle(f"{len(self.facts)} stages, the slowest {self.bottleneck:.3f} of their mean")
        return figure


def _check(what: str, given: Any, tree: Any, shapes: Sequence[jax.ShapeDtypeStruct]) -> list[Any]:
    """Its leaves. A stage that is given others would compute something else."""
    leaves, found = jax.tree.flatten(given)
    if found != tree:
        raise PartitionError(f"{what} are of another structure than those of the plan: {difference(found, tree)}.")
    for (path, leaf), wanted in zip(jax.tree_util.tree_leaves_with_path(given), shapes, strict=True):
        dtype, shape = jnp.result_type(leaf), list(np.shape(leaf))
        if dtype != wanted.dtype or shape != list(wanted.shape):
            raise PartitionError(
                f"{what} differ from those of the plan in {jax.tree_util.keystr(path) or 'the only one'}: "
                f"{dtype}{shape} instead of {wanted.dtype}{list(wanted.shape)}. A plan is made for these shapes only."
            )
    return leaves


def difference(found: Any, wanted: Any) -> str:
    """Where two structures first differ; a whole one has thousands of leaves."""
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
    return "the same paths, but other kinds of nodes (a tuple instead of a list, say)"


def _replaced(leaf: Any, piece: Piece, array: Any) -> Any:
    return array if piece.rows is None else jnp.asarray(leaf).at[piece.rows[0] : piece.rows[1]].set(array)


def sum_of(pieces: Sequence[tuple[Piece, Any]], shape: jax.ShapeDtypeStruct) -> Any:
    """The gradient of a parameter of this shape, of the pieces that stages have of it."""
    if len(pieces) == 1 and pieces[0][0].rows is None:
        return pieces[0][1]
    return _added([array for _, array in pieces], tuple(piece for piece, _ in pieces), shape)


# In one program there are no zeros on this process's own device, which would meet an array of several processes.
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
