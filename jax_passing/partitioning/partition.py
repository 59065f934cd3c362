"""`partition`: from a loss to the plan of its stages."""

import contextlib
import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_passing.errors import PartitionError
from jax_passing.host.processes import Fact
from jax_passing.partitioning.cost import bytes_of
from jax_passing.partitioning.cut import is_mark
from jax_passing.partitioning.measure import Measured, measured_once, refusals_told, stage_times_s
from jax_passing.partitioning.operation_cost import OperationCost, costs_of_chain
from jax_passing.partitioning.plan import Plan, StageFacts
from jax_passing.partitioning.program import CHECKPOINT, Program, Turn, holds_operations, trace
from jax_passing.partitioning.program_text import digest_of
from jax_passing.partitioning.scans import unroll
from jax_passing.partitioning.search import (
    Chain,
    Floats,
    Limits,
    Weight,
    best_cuts,
    slowest_share,
    stage_bytes,
    stage_s,
)
from jax_passing.partitioning.stages import Slicer, Stage

MEASUREMENTS_MAX = 4
NOTABLE = 1.1  # times as long


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
    bytes_per_s: float = math.inf,
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
        changes. Where there are several processes of `jax.distributed`, process 0 does so, and all of them, which call
        this together, have its times.
      flops_per_s: of a device, for times that aren't measured. The cuts depend on it only if the links or the memory
        have a rate.
      bytes_per_s: of a device's memory. An operation takes as long as what it computes, or as what it reads and writes,
        whichever is longer. Without a rate only what is computed counts.
      link_gbit: rate of the links between neighbouring stages, in Gbit/s each way.
      overlap: whether devices send while they compute.
      memory_bytes: of a device.
      optimizer_copies: bytes of optimiser state for each byte of parameters; Adam keeps two.
      microbatches: how many are in the pipeline at once, at most; a stage keeps what those need whose backward pass is
        still to come.

    Raises PartitionError if the loss has side effects or collectives, or can't be cut as asked; and with cost="measure"
    in all processes if they don't call this with the same arguments, or not all of them do, or one of them fails.
    """
    with refusals_told() if cost == "measure" else contextlib.nullcontext():
        _check_settings(stages, cost, (flops_per_s, bytes_per_s, link_gbit), microbatches)
        # Without shardings: how arrays lie now says nothing of the stages' devices.
        params_shapes, batch_shapes = jax.tree.map(
            lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype, weak_type=one.weak_type),
            jax.eval_shape(lambda *given: given, params, batch),
        )
        loss = _FlatLoss(loss_fn, params_shapes, batch_shapes, has_aux)
        program = unroll(trace(loss, loss.params_shapes, loss.batch_shapes))
        slicer = Slicer(program, loss.names)
        if not slicer.chain:
            raise PartitionError(
                "The loss doesn't depend on both the parameters and the batch: there is nothing to cut."
            )
        costs = costs_of_chain(slicer)
        forward_s = np.array([cost.forward.time_s(flops_per_s, bytes_per_s) for cost in costs])
        backward_s = np.array([cost.backward.time_s(flops_per_s, bytes_per_s) for cost in costs])
        chain = Chain(
            compute_s=forward_s + backward_s,
            stash_bytes=np.array([cost.stash_bytes for cost in costs]),
            cut_bytes=np.array([sum(bytes_of(program.shapes[value]) for value in live) for live in slicer.crossing]),
            may_cut=_legal_places(slicer, max_live, stages, forward_s + backward_s),
            weights=_weights(slicer, optimizer_copies),
        )
        limits = Limits(link_gbit * 1e9 / 8, overlap, memory_bytes, microbatches)
        cuts = best_cuts(chain, stages, limits)
        made = _stages(slicer, cuts)
        if cost == "measure":
            _check_arrays((params, batch))
            facts = _compared(program, chain, limits, stages)
    if cost == "measure":
        times_s, cuts = measured_once(facts, lambda: _measured(slicer, chain, cuts, limits, (params, batch)))
        chain, made = replace(chain, compute_s=np.array(times_s)), _stages(slicer, cuts)
    # Measured times don't say what part of them is the forward pass.
    shares = forward_s / np.maximum(forward_s + backward_s, np.finfo(float).tiny)
    notes = (_held_back(slicer, max_live, stages, chain.compute_s), _undivided(slicer, stages, chain.compute_s))
    return Plan(
        stages=made,
        facts=tuple(_facts(slicer, costs, shares, chain, limits, made, cuts, loss.params_shapes)),
        params_tree=loss.params_tree,
        params_shapes=loss.params_shapes,
        batch_tree=loss.batch_tree,
        batch_shapes=loss.batch_shapes,
        _chain=chain,
        _cuts=cuts,
        _outputs_tree=loss.outputs_tree,
        _has_aux=has_aux,
        notes=tuple(filter(None, notes)),
    )


def _check_settings(stages: int, cost: str, rates: Sequence[float], microbatches: int) -> None:
    if stages < 1:
        raise PartitionError(f"stages is {stages}; a model has at least one.")
    if min(rates) <= 0 or microbatches < 1:
        raise PartitionError("flops_per_s, bytes_per_s and link_gbit are above 0, and microbatches is at least 1.")
    if cost not in ("flops", "measure"):
        raise PartitionError(f"cost is {cost!r}; it may be 'flops' or 'measure'.")


class _FlatLoss:
    """The loss as a function of lists of leaves, which returns one: the loss, and then the leaves of aux.

    Attributes:
      names: the paths of the parameters.
      params_tree, params_shapes, batch_tree, batch_shapes: structure and leaves of both arguments.
      outputs_tree: of (loss, aux), once it was called.
    """

    outputs_tree: Any

    def __init__(self, loss_fn: Callable[[Any, Any], Any], params: Any, batch: Any, has_aux: bool):
        with_paths, self.params_tree = jax.tree_util.tree_flatten_with_path(params)
        self.names = [jax.tree_util.keystr(path) or "params" for path, _ in with_paths]
        self.params_shapes = tuple(leaf for _, leaf in with_paths)
        batch_shapes, self.batch_tree = jax.tree.flatten(batch)
        self.batch_shapes = tuple(batch_shapes)
        self._loss_fn = loss_fn
        self._has_aux = has_aux

    def __call__(self, params: Sequence[Any], batch: Sequence[Any]) -> list[Any]:
        """Raises PartitionError if the loss isn't what `jax.value_and_grad` takes."""
        result = self._loss_fn(jax.tree.unflatten(self.params_tree, params), jax.tree.unflatten(self.batch_tree, batch))
        if isinstance(result, tuple) != self._has_aux:
            returned = "a tuple: pass has_aux=True" if isinstance(result, tuple) else "no tuple (loss, aux)"
            raise PartitionError(f"With has_aux={self._has_aux} the loss returned {returned}.")
        loss, aux = result if self._has_aux else (result, ())
        if jnp.shape(loss) != () or not jnp.issubdtype(jnp.result_type(loss), jnp.floating):
            raise PartitionError(f"The loss has to be a real scalar; this one is {jax.typeof(loss)}.")
        outputs, self.outputs_tree = jax.tree.flatten((loss, aux))
        return outputs


def _facts(
    slicer: Slicer,
    costs: Sequence[OperationCost],
    forward_shares: np.ndarray[Any, np.dtype[np.float64]],
    chain: Chain,
    limits: Limits,
    stages: Sequence[Stage],
    cuts: Sequence[int],
    params_shapes: Sequence[jax.ShapeDtypeStruct],
) -> Iterator[StageFacts]:
    """By stage. `forward_shares`: by operation, of its time."""
    for number, (stage, (first, last)) in enumerate(zip(stages, _pairs(slicer, cuts), strict=True)):
        compute_s = chain.compute_s[first:last]
        yield StageFacts(
            place=slicer.chain[first].place,
            compute_s=float(compute_s.sum()),
            forward_s=float((compute_s * forward_shares[first:last]).sum()),
            busy_s=stage_s(chain, limits, first, last),
            flops=sum(cost.forward.flops + cost.backward.flops for cost in costs[first:last]),
            params=sum(math.prod(shape.shape) for shape in stage.held(params_shapes).values()),
            memory_bytes=stage_bytes(chain, limits, first, last, len(stages) - 1 - number),
            sent_bytes=float(chain.cut_bytes[last]),
            sent_count=len(slicer.crossing[last]),
        )


def _pairs(slicer: Slicer, cuts: Sequence[int]) -> list[tuple[int, int]]:
    return list(itertools.pairwise((0, *cuts, len(slicer.chain))))


def _stages(slicer: Slicer, cuts: Sequence[int]) -> tuple[Stage, ...]:
    return tuple(slicer.stage(first, last) for first, last in _pairs(slicer, cuts))


def _measured(slicer: Slicer, chain: Chain, cuts: tuple[int, ...], limits: Limits, given: tuple[Any, Any]) -> Measured:
    """The times that the stages take, as those of their operations, and the cuts that suit them."""
    leaves, batch = jax.tree.leaves(given[0]), given[1]
    for _ in range(MEASUREMENTS_MAX):
        made = _stages(slicer, cuts)
        held = [stage.held(leaves) for stage in made]
        compute_s = chain.compute_s.copy()
        for (first, last), time_s in zip(_pairs(slicer, cuts), stage_times_s(made, held, batch), strict=True):
            counted_s = compute_s[first:last].sum()
            share = compute_s[first:last] / counted_s if counted_s else np.full(last - first, 1 / (last - first))
            compute_s[first:last] = share * time_s
        chain = replace(chain, compute_s=compute_s)
        better = best_cuts(chain, len(made), limits)
        if better == cuts:
            break
        cuts = better
    return chain.compute_s.tolist(), cuts


def _compared(program: Program, chain: Chain, limits: Limits, stages: int) -> dict[str, Fact]:
    """Lists what must be alike in all processes, if the times of one of them are to be those of all."""
    loss = digest_of(program.operations, [*program.params, *program.batch], program.outputs, program.constants)
    search = repr((limits, chain.may_cut.tolist(), chain.compute_s.tolist(), chain.stash_bytes.tolist(), chain.weights))
    return {
        "the loss": (loss, f"{len(program.operations)} operations"),
        "stages": (str(stages), str(stages)),
        "the other arguments": (hashlib.sha256(search.encode()).hexdigest(), "some"),
    }


def _check_arrays(given: Any) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(given):
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            raise PartitionError(
                f"{jax.tree_util.keystr(path)} of (params, batch) has parts in other processes. With cost='measure' "
                "one process times the stages by itself, so give it arrays of its own, such as NumPy's."
            )


def _legal_places(slicer: Slicer, max_live: int, stages: int, compute_s: Floats) -> np.ndarray[Any, np.dtype[np.bool_]]:
    if not (marked := _marked(slicer)):
        counts = [len(live) for live in slicer.crossing]
        inner = sorted(counts[1:-1])
        if len(inner) < stages - 1:
            raise PartitionError(
                f"Of operations that depend on both parameters and batch, the loss has {len(slicer.chain)}, too few "
                f"for {stages} stages. {_undivided(slicer, stages, compute_s)}".rstrip()
            )
        if stages > 1 and (enough := inner[stages - 2]) > max_live:
            raise PartitionError(
                f"At most {max_live} values (max_live) cross a cut in {sum(count <= max_live for count in inner)} "
                f"places, too few for {stages} stages: max_live={enough} allows enough; or ask for fewer stages."
            )
        return np.array(counts) <= max_live
    if len(marked) < stages - 1:
        raise PartitionError(
            f"The model has {len(marked)} marks (jax_passing.cut), too few for {stages} stages: mark {stages - 1} "
            "places, or none."
        )
    legal = np.zeros(len(slicer.crossing), bool)
    legal[marked] = True
    return legal


def _marked(slicer: Slicer) -> list[int]:
    """The places of marks."""
    marks = [is_mark(operation) for operation in slicer.chain]
    # A mark of a pytree is one place, behind the marks of all its leaves.
    return [place for place, pair in enumerate(itertools.pairwise([*marks, False]), 1) if pair == (True, False)]


def _undivided(slicer: Slicer, stages: int, compute_s: Floats) -> str:
    """A sentence on the largest operation, if it is much more than a stage's share and has others inside of it."""
    largest, total_s = int(np.argmax(compute_s)), compute_s.sum()
    operation = slicer.chain[largest]
    if compute_s[largest] * stages <= NOTABLE * total_s or not holds_operations(operation.eqn):
        return ""
    name, advice = operation.eqn.primitive.name, ""
    if name in CHECKPOINT:
        name, advice = "jax.checkpoint", ": put jax.checkpoint around each layer, instead of around all of them"
    elif isinstance(operation, Turn):
        name = "a turn of the scan"
    share = f"{100 * compute_s[largest] / total_s:.0f} %"
    return (
        f"{name} {operation.line or 'of the loss'} is one operation, which isn't cut, with {share} of the work{advice}."
    )


def _held_back(slicer: Slicer, max_live: int, stages: int, compute_s: Floats) -> str:
    """A sentence on `max_live`, if with more the slowest stage would be notably faster."""
    if _marked(slicer):
        return ""
    counts = np.array([len(live) for live in slicer.crossing])[1:-1]

    def share(most: int) -> float:
        return slowest_share(compute_s, np.flatnonzero(counts <= most) + 1, stages)

    now, best = share(max_live), share(counts.max(initial=0))
    if now < NOTABLE * best:
        return ""
    enough = next(most for most in np.unique(counts) if most > max_live and share(most) < 1.01 * best)
    return (
        f"With max_live={max_live} the slowest stage takes {now:.2f} of their mean, with max_live={enough} it would "
        f"take {share(enough):.2f}: of computing alone."
    )


def _weights(slicer: Slicer, optimizer_copies: float) -> list[Weight]:
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
