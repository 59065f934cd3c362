"""`partition`: from a loss to the plan of its stages."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_passing.errors import PartitionError
from jax_passing.partitioning.cost import bytes_of
from jax_passing.partitioning.cut import is_mark
from jax_passing.partitioning.measure import stage_times_s
from jax_passing.partitioning.operation_cost import costs_of_chain
from jax_passing.partitioning.plan import Plan, StageFacts
from jax_passing.partitioning.program import Operation, line_of, trace
from jax_passing.partitioning.scans import unroll
from jax_passing.partitioning.search import Chain, Limits, Weight, best_cuts, stage_bytes, stage_s
from jax_passing.partitioning.stages import Slicer, Stage

MEASUREMENTS_MAX = 4


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
    if link_gbit <= 0 or flops_per_s <= 0 or microbatches < 1:
        raise PartitionError("link_gbit and flops_per_s are above 0, and microbatches is at least 1.")
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
        if isinstance(result, tuple) != has_aux:
            returned = "a tuple: pass has_aux=True" if isinstance(result, tuple) else "no tuple (loss, aux)"
            raise PartitionError(f"With has_aux={has_aux} the loss returned {returned}.")
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
    forward_share = np.array([cost.forward.flops for cost in costs]) / np.maximum(flops, 1.0)
    chain = Chain(
        compute_s=flops / flops_per_s,
        stash_bytes=np.array([cost.stash_bytes for cost in costs]),
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
            forward_s=float((chain.compute_s * forward_share)[first:last].sum()),
            busy_s=stage_s(chain, limits, first, last),
            flops=float(flops[first:last].sum()),
            params=sum(math.prod(piece.of(shapes[piece.leaf]).shape) for piece in stage.pieces),
            memory_bytes=stage_bytes(chain, limits, first, last, stages - 1 - number),
            sent_bytes=float(chain.cut_bytes[last]),
            sent_count=len(slicer.crossing[last]),
        )
        for number, (stage, (first, last)) in enumerate(zip(made, pairs, strict=True))
    )
    return Plan(made, facts, params_tree, shapes, batch_tree, tuple(batch_leaves), chain, cuts, outputs_tree, has_aux)


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
    marks = [is_mark(operation) for operation in slicer.chain]
    # A mark of a pytree is one place, behind the marks of all its leaves.
    marked = [place for place, pair in enumerate(itertools.pairwise([*marks, False]), 1) if pair == (True, False)]
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
