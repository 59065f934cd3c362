"""`partition`, and the plan that it makes."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_passing.errors import PartitionError
from jax_passing.partitioning.cost import bytes_of
from jax_passing.partitioning.cut import is_mark
from jax_passing.partitioning.measure import stage_times_s
from jax_passing.partitioning.memory import stash_bytes_of_chain
from jax_passing.partitioning.program import Operation, line_of, trace
from jax_passing.partitioning.scans import unroll
from jax_passing.partitioning.search import Chain, Limits, Weight, best_cuts, stage_bytes, stage_s
from jax_passing.partitioning.stages import Output, Piece, Slicer, Stage, put_together
from jax_passing.partitioning.timing import costs_of_chain

MEASUREMENTS_MAX = 4


@dataclass(frozen=True)
class StageFacts:
    """What a stage costs.

    Attributes:
      place: where it begins: module path and source line.
      compute_s: forward and backward pass of one microbatch.
      busy_s: the same with what is sent and received.
      flops: forward and backward.
      params: elements of parameters.
      memory_bytes: parameters, gradients, optimiser's state and stashes.
      sent_bytes, sent_count: what crosses to the next stage, forwards, and in how many arrays.
    """

    place: str
    compute_s: float
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
    """

    stages: tuple[Stage, ...]
    facts: tuple[StageFacts, ...]
    _chain: Chain
    _cuts: tuple[int, ...]
    _params_tree: Any
    _params_shapes: tuple[jax.ShapeDtypeStruct, ...]
    _outputs_tree: Any
    _has_aux: bool

    @property
    def bottleneck(self) -> float:
        """The slowest stage's time over the mean of all."""
        times = [facts.busy_s for facts in self.facts]
        return max(times) * len(times) / sum(times) if sum(times) else 1.0

    def split(self, params: Any) -> list[dict[str, Any]]:
        """By stage what it holds of the parameters. Tied parameters are with each stage that uses them."""
        leaves = self._leaves(params)
        return [{piece.name: piece.of(leaves[piece.leaf]) for piece in stage.pieces} for stage in self.stages]

    def merge(self, held: Sequence[Mapping[str, Any]], params: Any) -> Any:
        """The parameters, with what stages hold in their place; of tied ones the first stage's.

        `params`: as they were; what no stage uses stays as it is.
        """
        leaves = self._leaves(params)
        seen: set[Piece] = set()
        for stage, arrays in zip(self.stages, held, strict=True):
            for piece in stage.pieces:
                if piece not in seen:
                    leaves[piece.leaf] = _replaced(leaves[piece.leaf], piece, arrays[piece.name])
                    seen.add(piece)
        return jax.tree.unflatten(self._params_tree, leaves)

    def merge_gradients(self, held: Sequence[Mapping[str, Any]]) -> Any:
        """Gradients shaped like the parameters: those of tied ones are added up, and what no stage uses has zeros."""
        leaves: list[Any] = [jnp.zeros(shape.shape, shape.dtype) for shape in self._params_shapes]
        for stage, arrays in zip(self.stages, held, strict=True):
            for piece in stage.pieces:
                leaves[piece.leaf] = _added(leaves[piece.leaf], piece, arrays[piece.name])
        return jax.tree.unflatten(self._params_tree, leaves)

    def __call__(self, params: Any, batch: Any) -> Any:
        """The loss, and aux if the loss has it: all stages one after the other, on the same device."""
        carried: list[Any] = []
        everything: list[tuple[Output, Any]] = []
        for stage, held in zip(self.stages, self.split(params), strict=True):
            carried, left = stage(held, carried, batch)
            everything += zip(stage.outputs, left, strict=True)
        return self._result(everything)

    def value_and_grad(self, params: Any, batch: Any) -> Any:
        """As `jax.value_and_grad` of the loss, stage by stage: first all forwards, then all backwards.

        This is what pipelines do, on one device and with one microbatch.
        """
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
        return self._result(everything), self.merge_gradients(gradients[::-1])

    def _result(self, left: Sequence[tuple[Output, Any]]) -> Any:
        loss, aux = jax.tree.unflatten(self._outputs_tree, put_together(left))
        return (loss, aux) if self._has_aux else loss

    def _leaves(self, params: Any) -> list[Any]:
        leaves, tree = jax.tree.flatten(params)
        if tree != self._params_tree:
            raise PartitionError(
                f"These parameters are of another structure than those that the plan was made for: {tree} instead of "
                f"{self._params_tree}."
            )
        return leaves

    def __str__(self) -> str:
        total = sum(facts.compute_s for facts in self.facts) or 1.0
        lines = [f"{len(self.facts)} stages, the slowest takes {self.bottleneck:.3f} of their mean"]
        for number, facts in enumerate(self.facts):
            lines.append(
                f"  {number}: from {facts.place}: {100 * facts.compute_s / total:.1f} % of the work "
                f"({_short(facts.flops)}FLOP a microbatch), {_short(facts.params)} parameters, "
                f"{_short(facts.memory_bytes)}B of memory"
                + (f"; sends {_short(facts.sent_bytes)}B in {facts.sent_count}" if facts.sent_count else "")
            )
        return "\n".join(lines)

    def plot(self) -> Any:
        """A Figure of matplotlib, which has to be installed: the work of each operation and what would cross a cut before it, with the cuts."""
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


def _replaced(leaf: Any, piece: Piece, array: Any) -> Any:
    return array if piece.rows is None else jnp.asarray(leaf).at[piece.rows[0] : piece.rows[1]].set(array)


def _added(leaf: Any, piece: Piece, array: Any) -> Any:
    return leaf + array if piece.rows is None else leaf.at[piece.rows[0] : piece.rows[1]].add(array)


def _short(number: float) -> str:
    for unit in ("", "K", "M", "G", "T"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} P"


def partition(
    loss_fn: Callable[[Any, Any], Any],
    params: Any,
    batch: Any,
    *,
    stages: int,
    has_aux: bool = False,
    max_live: int = 4,
    cost: str = "flops",
    flops_per_s: float = 1e12,
    link_gbit: float = math.inf,
    overlap: bool = True,
    memory_bytes: float = math.inf,
    optimizer_copies: float = 2.0,
    microbatches: int = 1,
) -> Plan:
    """Cuts a model into stages for a pipeline, so that the slowest one is as fast as possible.

    The loss is traced with the shapes of `params` and `batch`; nothing is computed. Its operations that depend on both
    make up a chain, in the order of the program, and stages are runs of that. Everything else (casts of parameters,
    masks, random keys, labels) is copied into each stage that uses it. Functions under `jax.jit` are looked into, scans
    over layers are cut between their turns; blocks under `jax.checkpoint`, `cond` and functions with derivatives of
    their own stay whole.

    Args:
      loss_fn: `loss_fn(params, batch)` returns a scalar, or `(scalar, aux)`; a pure function.
      params: pytree of arrays or of their shapes.
      batch: pytree of what one microbatch has, random keys included; arrays or their shapes.
      stages: how many.
      has_aux: as of `jax.value_and_grad`.
      max_live: how many arrays may cross a cut. What a later stage needs is handed on by those between.
      cost: "flops" counts floating-point operations, from shapes only. "measure" then times the stages on this
        process's first device, with the arrays that are given, corrects the counts by that, and cuts anew until nothing
        changes.
      flops_per_s: of a device, for times that aren't measured. The cuts depend on it only if the links have a rate.
      link_gbit: rate of the links between neighbouring stages, in Gbit/s each way.
      overlap: whether devices send while they compute.
      memory_bytes: of a device.
      optimizer_copies: bytes of optimiser state for each byte of parameters; Adam keeps two.
      microbatches: how many are in the pipeline at once, at most; a stage keeps what those need whose backward pass is
        still to come.

    Raises PartitionError if the loss has side effects, or can't be cut as asked.
    """
    if stages < 1:
        raise PartitionError(f"stages is {stages}; a model has at least one.")
    if cost not in ("flops", "measure"):
        raise PartitionError(f"cost is {cost!r}; it may be 'flops' or 'measure'.")
    given = params, batch
    params, batch = jax.eval_shape(lambda params, batch: (params, batch), params, batch)
    with_paths, params_tree = jax.tree_util.tree_flatten_with_path(params)
    names = [jax.tree_util.keystr(path) or "params" for path, _ in with_paths]
    shapes = tuple(leaf for _, leaf in with_paths)
    batch_leaves, batch_tree = jax.tree.flatten(batch)
    outputs_tree: Any = None

    def flat(leaves: list[Any], batch: list[Any]) -> list[Any]:
        nonlocal outputs_tree
        result = loss_fn(jax.tree.unflatten(params_tree, leaves), jax.tree.unflatten(batch_tree, batch))
        loss, aux = result if has_aux else (result, ())
        if jnp.shape(loss) != () or not jnp.issubdtype(jnp.result_type(loss), jnp.floating):
            raise PartitionError(f"The loss has to be a real scalar; this one is {jax.typeof(loss)}.")
        outputs, outputs_tree = jax.tree.flatten((loss, aux))
        return outputs

    program = unroll(trace(flat, shapes, batch_leaves))
    slicer = Slicer(program, names)
    if not slicer.chain:
        raise PartitionError("The loss doesn't depend on both the parameters and the batch: there is nothing to cut.")
    costs = costs_of_chain(slicer)
    flops = np.array([cost.forward.flops + cost.backward.flops for cost in costs])
    chain = Chain(
        compute_s=flops / flops_per_s,
        stash_bytes=np.array(stash_bytes_of_chain(slicer)),
        cut_bytes=np.array([sum(bytes_of(program.shapes[value]) for value in live) for live in slicer.crossing]),
        may_cut=_legal_places(slicer, max_live, stages),
        weights=_weights(slicer, shapes, optimizer_copies),
    )
    limits = Limits(link_gbit * 1e9 / 8, overlap, memory_bytes, microbatches)
    cuts = best_cuts(chain, stages, limits)
    made = _stages(slicer, cuts)
    if cost == "measure":
        chain, cuts, made = _measured(slicer, chain, cuts, made, limits, given)
    pairs = _pairs(slicer, cuts)
    facts = tuple(
        StageFacts(
            place=_place(slicer.chain[first]),
            compute_s=float(chain.compute_s[first:last].sum()),
            busy_s=stage_s(chain, limits, first, last),
            flops=float(flops[first:last].sum()),
            params=sum(math.prod(piece.of(shapes[piece.leaf]).shape) for piece in stage.pieces),
            memory_bytes=stage_bytes(chain, limits, first, last, stages - 1 - number),
            sent_bytes=float(chain.cut_bytes[last]),
            sent_count=len(slicer.crossing[last]),
        )
        for number, (stage, (first, last)) in enumerate(zip(made, pairs, strict=True))
    )
    return Plan(made, facts, chain, cuts, params_tree, shapes, outputs_tree, has_aux)


def _pairs(slicer: Slicer, cuts: Sequence[int]) -> list[tuple[int, int]]:
    return list(itertools.pairwise((0, *cuts, len(slicer.chain))))


def _stages(slicer: Slicer, cuts: Sequence[int]) -> tuple[Stage, ...]:
    return tuple(slicer.stage(first, last) for first, last in _pairs(slicer, cuts))


def _measured(
    slicer: Slicer, chain: Chain, cuts: tuple[int, ...], made: tuple[Stage, ...], limits: Limits, given: tuple[Any, Any]
) -> tuple[Chain, tuple[int, ...], tuple[Stage, ...]]:
    """The chain with the times that its stages take, and the cuts that suit it."""
    leaves, batch = jax.tree.leaves(given[0]), given[1]
    for _ in range(MEASUREMENTS_MAX):
        held = [{piece.name: piece.of(leaves[piece.leaf]) for piece in stage.pieces} for stage in made]
        compute_s = chain.compute_s.copy()
        for (first, last), time_s in zip(_pairs(slicer, cuts), stage_times_s(made, held, batch), strict=True):
            counted_s = compute_s[first:last].sum()
            share = compute_s[first:last] / counted_s if counted_s else np.full(last - first, 1 / (last - first))
            compute_s[first:last] = share * time_s
        chain = replace(chain, compute_s=compute_s)
        better = best_cuts(chain, len(made), limits)
        if better == cuts:
            break
        cuts, made = better, _stages(slicer, better)
    return chain, cuts, made


def _legal_places(slicer: Slicer, max_live: int, stages: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    marked = [place + 1 for place, operation in enumerate(slicer.chain) if is_mark(operation)]
    if not marked:
        return np.array([len(live) <= max_live for live in slicer.crossing])
    if len(marked) < stages - 1:
        raise PartitionError(
            f"The model has {len(marked)} marks (jax_passing.cut), too few for {stages} stages: mark {stages - 1} "
            "places, or none."
        )
    legal = np.zeros(len(slicer.crossing), bool)
    legal[marked] = True
    return legal


def _weights(slicer: Slicer, shapes: Sequence[jax.ShapeDtypeStruct], optimizer_copies: float) -> list[Weight]:
    """With gradient and optimiser's state. Rows that turns of a scan use are weights of their own."""
    program = slicer.program
    uses: dict[int, list[int]] = {}
    for place, operation in enumerate(slicer.chain):
        inputs, _ = slicer.needs([operation])
        for value in inputs:
            uses.setdefault(value, []).append(place)
    held = [*program.params, *program.rows]
    copies = 2.0 + optimizer_copies
    return [Weight(copies * bytes_of(program.shapes[value]), tuple(uses[value])) for value in held if value in uses]


def _place(operation: Operation) -> str:
    """Module path and line of the user's program."""
    line = line_of(operation.eqn)
    return " ".join(filter(None, (operation.scope, line and f"({line})"))) or operation.eqn.primitive.name
