"""`partition` makes the plan of a loss's stages."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_passing.errors import UsageError
from jax_passing.partitioning import measure
from jax_passing.partitioning.arrays import bytes_of
from jax_passing.partitioning.memory import Chain, Limits, Weight, checkpoints_of_stages
from jax_passing.partitioning.operation_cost import OperationCost, costs_of_chain
from jax_passing.partitioning.plan import Plan, StageFacts
from jax_passing.partitioning.positions import legal_positions, notes_on
from jax_passing.partitioning.scans import unroll
from jax_passing.partitioning.search import best_cuts, stage_bytes, stage_s
from jax_passing.partitioning.stages import Slicer, Stage
from jax_passing.partitioning.traced_model import trace


def partition(
    loss_fn: Callable[[Any, Any], Any],
    params: Any,
    batch: Any,
    *,
    stages: int,
    has_aux: bool = False,
    frozen: Any = None,
    max_live: int = 4,
    cost: str = "flops",
    flops_per_s: float = 1e12,
    bytes_per_s: float = math.inf,
    link_gbit: float = math.inf,
    overlap: bool = True,
    memory_bytes: float = math.inf,
    optimizer_copies: float = 2.0,
    microbatches: int = 1,
    remat: bool = False,
    imbalance: float = 0.01,
) -> Plan:
    """Cuts a model into stages for a pipeline, so that the slowest one is as fast as possible.

    The loss is traced with the shapes of `params` and `batch`; nothing is computed. Its operations that depend on both
    make up a chain, in the order in which the loss does them, and stages are runs of this chain. Everything else (casts
    of parameters, masks, random keys, labels) is copied into each stage that uses it. Cuts may be inside of functions
    under `jax.jit` and between the turns of scans over layers. Blocks under `jax.checkpoint`, `cond` and functions with
    custom derivatives stay whole.

    Args:
      loss_fn: `loss_fn(params, batch)` returns a scalar, or `(scalar, aux)`; a pure function.
      params: pytree of arrays or of their shapes.
      batch: pytree of one microbatch, random keys included; arrays or their shapes.
      stages: number of stages.
      has_aux: whether the loss returns aux, as for `jax.value_and_grad`.
      frozen: which parameters aren't trained, as the mask of `optax.masked`: a pytree of bools that is a prefix of the
        parameters, or a function of the parameters that returns one. Stages hold frozen parameters, but neither their
        gradients nor an optimiser's state for them, and compute only the part of the backward pass that others need.
      max_live: how many arrays may cross a cut. The stages in between hand on what a later stage needs.
      cost: "flops" counts floating-point operations, from shapes only. "measure" then times the stages on this
        process's first device, with the arrays that are given, corrects the counts by these times, and cuts anew until
        nothing changes. All processes of `jax.distributed` call this together; process 0 measures, and all use its
        times.
      flops_per_s: rate of a device, for times that aren't measured. The cuts depend on it only if the links or the
        memory have a rate.
      bytes_per_s: rate of a device's memory. An operation takes as long as its computing, or as its reading and
        writing, whichever is longer. Without a rate only computing counts.
      link_gbit: rate of the links between neighbouring stages, in Gbit/s each way.
      overlap: whether devices send while they compute.
      memory_bytes: memory of a device.
      optimizer_copies: bytes of optimiser state for each byte of parameters; Adam keeps two.
      microbatches: how many are in the pipeline at once, at most. A stage keeps what their backward passes need.
      remat: whether stages that don't fit into `memory_bytes` may compute parts of their forward pass again in the
        backward pass, under `jax.checkpoint`. They do so with as little as fits, and that time counts.
      imbalance: by how much the slowest stage may be slower than necessary if fewer bytes cross the cuts then. The
        default of 0.01, which is 1 %, is less than what operations' costs are uncertain by; bytes are exact. 0 for
        balance alone.

    Raises UsageError if the loss has side effects or collectives, or can't be cut as asked. With cost="measure" all
    processes raise it if their arguments differ, if not all of them call this, or if one of them fails.
    """
    with measure.refusing_together() if cost == "measure" else contextlib.nullcontext():
        _check_settings(stages, cost, (flops_per_s, bytes_per_s, link_gbit), microbatches, imbalance)
        # The shapes are without shardings: how arrays lie now says nothing about the stages' devices.
        params_shapes, batch_shapes = jax.tree.map(
            lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype, weak_type=one.weak_type),
            jax.eval_shape(lambda *given: given, params, batch),
        )
        loss = _FlatLoss(loss_fn, params_shapes, batch_shapes, has_aux)
        is_frozen = _frozen_leaves(frozen, params_shapes)
        model = unroll(trace(loss, loss.params_shapes, loss.batch_shapes, is_frozen))
        slicer = Slicer(model, loss.names)
        if not slicer.chain:
            raise UsageError("The loss doesn't depend on both the parameters and the batch: there is nothing to cut.")
        costs = costs_of_chain(slicer)
        forward_s = np.array([cost.forward.time_s(flops_per_s, bytes_per_s) for cost in costs])
        backward_s = np.array([cost.backward.time_s(flops_per_s, bytes_per_s) for cost in costs])
        chain = Chain(
            compute_s=forward_s + backward_s,
            stash_bytes=np.array([cost.stash_bytes for cost in costs]),
            cut_bytes=np.array([sum(bytes_of(model.shapes[value]) for value in live) for live in slicer.crossing]),
            may_cut=legal_positions(slicer, max_live, stages, forward_s + backward_s),
            weights=_weights(slicer, optimizer_copies),
            work_bytes=np.array([cost.work_bytes for cost in costs]),
            # Measured times don't say which part of them is the forward pass, so the counted shares serve for them.
            forward_share=forward_s / np.maximum(forward_s + backward_s, np.finfo(float).tiny),
        )
        limits = Limits(link_gbit * 1e9 / 8, overlap, memory_bytes, microbatches, remat, imbalance)
        cuts = best_cuts(chain, stages, limits)
        if cost == "measure":
            measure.check_arrays((params, batch))
            facts = measure.facts_of(slicer, chain, limits, stages)
    if cost == "measure":
        times_s, cuts = measure.measured_once(facts, slicer, chain, cuts, limits, (params, batch))
        chain = replace(chain, compute_s=np.array(times_s))
    checkpoints = checkpoints_of_stages(chain, limits, cuts)
    made = slicer.stages(cuts, checkpoints)
    return Plan(
        stages=made,
        facts=tuple(_facts(slicer, costs, chain, limits, made, cuts, checkpoints, loss.params_shapes)),
        params_tree=loss.params_tree,
        params_shapes=loss.params_shapes,
        batch_tree=loss.batch_tree,
        batch_shapes=loss.batch_shapes,
        frozen=is_frozen,
        _chain=chain,
        _cuts=cuts,
        _outputs_tree=loss.outputs_tree,
        _has_aux=has_aux,
        notes=notes_on(slicer, max_live, stages, chain.compute_s),
    )


def _check_settings(stages: int, cost: str, rates: Sequence[float], microbatches: int, imbalance: float) -> None:
    if stages < 1:
        raise UsageError(f"stages is {stages}; a model has at least one.")
    if min(rates) <= 0 or microbatches < 1:
        raise UsageError("flops_per_s, bytes_per_s and link_gbit must be above 0, and microbatches at least 1.")
    if not 0 <= imbalance < math.inf:
        raise UsageError(f"imbalance is {imbalance}; it is a share of the slowest stage's time: 0.02 for 2 %.")
    if cost not in ("flops", "measure"):
        raise UsageError(f"cost is {cost!r}; it may be 'flops' or 'measure'.")


def _frozen_leaves(frozen: Any, params: Any) -> tuple[bool, ...]:
    """Tells of each leaf of the parameters whether it is frozen. Raises UsageError if `frozen` doesn't say so."""
    mask = frozen(params) if callable(frozen) else frozen
    marks: list[bool] = []

    def add(mark: Any, part: Any) -> None:
        leaves = jax.tree.leaves(part)
        if mark is None and not leaves:  # as jax.tree.map makes of a None among the parameters
            return
        if not isinstance(mark, bool | np.bool_):
            raise UsageError(
                f"frozen has {mark!r} in it; its leaves have to be True or False. Labels, as of optax.partition, "
                'become such a tree by jax.tree.map(lambda label: label == "frozen", labels).'
            )
        marks.extend([bool(mark)] * len(leaves))

    try:
        jax.tree.map(add, False if mask is None else mask, params, is_leaf=lambda one: one is None)
    except ValueError as error:
        raise UsageError(f"frozen isn't a prefix of the tree of parameters: {error}") from None
    return tuple(marks)


class _FlatLoss:
    """Makes the loss a function of lists of leaves, which returns one: the loss, and then the leaves of aux.

    Attributes:
      names: the paths of the parameters.
      params_tree, params_shapes, batch_tree, batch_shapes: structure and leaves of both arguments.
      outputs_tree: structure of (loss, aux), known after the first call.
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
        """Raises UsageError if the loss isn't what `jax.value_and_grad` takes."""
        result = self._loss_fn(jax.tree.unflatten(self.params_tree, params), jax.tree.unflatten(self.batch_tree, batch))
        if isinstance(result, tuple) != self._has_aux:
            returned = "a tuple: pass has_aux=True" if isinstance(result, tuple) else "no tuple (loss, aux)"
            raise UsageError(f"With has_aux={self._has_aux} the loss returned {returned}.")
        loss, aux = result if self._has_aux else (result, ())
        if jnp.shape(loss) != () or not jnp.issubdtype(jnp.result_type(loss), jnp.floating):
            raise UsageError(f"The loss has to be a real scalar; this one is {jax.typeof(loss)}.")
        outputs, self.outputs_tree = jax.tree.flatten((loss, aux))
        return outputs


def _facts(
    slicer: Slicer,
    costs: Sequence[OperationCost],
    chain: Chain,
    limits: Limits,
    stages: Sequence[Stage],
    cuts: Sequence[int],
    checkpoints: Sequence[Sequence[int]],
    params_shapes: Sequence[jax.ShapeDtypeStruct],
) -> Iterator[StageFacts]:
    """Yields the facts of each stage."""
    forward_s = chain.compute_s * chain.forward_share
    described = zip(stages, slicer.runs(cuts), checkpoints, strict=True)
    for number, (stage, (first, last), own) in enumerate(described):
        after = len(stages) - 1 - number
        again = slice(first, max((first, *own)))
        again_s = float(forward_s[again].sum())
        yield StageFacts(
            location=slicer.chain[first].location,
            compute_s=float(chain.compute_s[first:last].sum()) + again_s,
            forward_s=float(forward_s[first:last].sum()),
            again_s=again_s,
            busy_s=stage_s(chain, limits, first, last, after),
            flops=sum(cost.forward.flops + cost.backward.flops for cost in costs[first:last])
            + sum(cost.forward.flops for cost in costs[again]),
            params=sum(math.prod(shape.shape) for shape in stage.held(params_shapes).values()),
            memory_bytes=stage_bytes(chain, limits, first, last, after),
            sent_bytes=float(chain.cut_bytes[last]),
            sent_count=len(slicer.crossing[last]),
        )


def _weights(slicer: Slicer, optimizer_copies: float) -> list[Weight]:
    """Lists the parameters, with their gradients and optimiser state. Rows that turns of a scan use are weights of
    their own."""
    model = slicer.model
    uses: dict[int, list[int]] = {}
    for number, operation in enumerate(slicer.chain):
        inputs, _ = slicer.needs([operation])
        for value in inputs:
            uses.setdefault(value, []).append(number)
    trained = model.trained
    copies = 1.0 + optimizer_copies  # besides the parameter: its gradient, and the optimiser's state
    return [
        Weight((1.0 + (copies if value in trained else 0.0)) * bytes_of(model.shapes[value]), tuple(uses[value]))
        for value in (*model.params, *model.rows)
        if value in uses
    ]
