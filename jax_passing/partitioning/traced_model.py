"""Traces a loss to a flat list of operations on numbered values, also those inside of jitted functions."""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from jax_passing.errors import UsageError
from jax_passing.partitioning.arrays import no_mesh
from jax_passing.partitioning.operations import JITTED, Operation, is_jaxpr, source_line


@dataclass(frozen=True)
class Row:
    """Finds the parameter of which a value is a row: one turn of a scan over stacked layers uses it."""

    param: int
    row: int


@dataclass(frozen=True)
class TracedModel:
    """Holds a loss as operations.

    Attributes:
      operations: each comes after those whose outputs it uses.
      shapes: by value.
      params, batch: the values of their leaves.
      rows: by value, the row of a parameter that it is.
      stacked: by value, the rows that it is made of. These are the arrays that turns of a scan stack, if the array is
        an output of the model and used for nothing else. Each stage returns the rows of its own turns.
      constants: by value, arrays that the loss closed over.
      outputs: values, or literals.
      frozen: the parameters that aren't trained.
    """

    operations: tuple[Operation, ...]
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    params: tuple[int, ...]
    batch: tuple[int, ...]
    rows: dict[int, Row]
    stacked: dict[int, tuple[int, ...]]
    constants: dict[int, Any]
    outputs: tuple["int | core.Literal", ...]
    frozen: frozenset[int] = frozenset()

    @property
    def trained(self) -> set[int]:
        """Returns the parameters, and rows of them, that are trained."""
        rows = (value for value, row in self.rows.items() if row.param not in self.frozen)
        return {*(set(self.params) - self.frozen), *rows}


class Builder:
    """Makes a flat list of operations from a jaxpr."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.shapes: list[jax.ShapeDtypeStruct] = []
        self.constants: dict[int, Any] = {}

    def new(self, aval: Any) -> int:
        self.shapes.append(aval)
        return len(self.shapes) - 1

    def inline(
        self,
        jaxpr: core.Jaxpr,
        constants: Sequence[Any],
        inputs: Sequence[Any],
        outer: str = "",
        calls: tuple[core.JaxprEqn, ...] = (),
    ) -> list[Any]:
        """Adds the jaxpr's operations, and returns its outputs as numbers of values, or literals.

        `outer` and `calls`: the scope and the calls that the jaxpr is in.
        """
        known: dict[core.Var, Any] = dict(zip(jaxpr.invars, inputs, strict=True))
        for var, array in zip(jaxpr.constvars, constants, strict=True):
            known[var] = self.new(var.aval)
            # Some of JAX's constants are NumPy arrays, and a tracer can't index those.
            self.constants[known[var]] = jnp.asarray(array)

        def read(atom: Any) -> Any:
            return atom if isinstance(atom, core.Literal) else known[atom]

        for eqn in jaxpr.eqns:
            arguments = [read(atom) for atom in eqn.invars]
            scope = "/".join(filter(None, (outer, str(eqn.source_info.name_stack))))
            if (called := JITTED.get(eqn.primitive.name)) is not None:
                closed = eqn.params[called]
                inner, consts = (closed.jaxpr, closed.consts) if isinstance(closed, core.ClosedJaxpr) else (closed, ())
                results = self.inline(inner, consts, arguments, scope, (eqn, *calls))
            else:
                results = self.add(eqn, arguments, scope, calls)
            known.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def add(
        self, eqn: core.JaxprEqn, arguments: Sequence[Any], scope: str, calls: tuple[core.JaxprEqn, ...]
    ) -> list[Any]:
        """Adds an operation and returns its outputs."""
        results = [self.new(var.aval) for var in eqn.outvars]
        self.operations.append(Operation(eqn, tuple(arguments), tuple(results), scope, calls))
        return results


def trace(
    loss: Callable[..., Any], params: Sequence[Any], batch: Sequence[Any], frozen: Sequence[bool] = ()
) -> TracedModel:
    """Traces `loss(params, batch)`, which takes lists of leaves (arrays or their shapes) and returns a list of leaves.

    `frozen`: by parameter, whether it isn't trained; empty if all are.

    Raises UsageError if the loss has something in it that no stage can have.
    """
    try:
        closed = jax.make_jaxpr(loss)(list(params), list(batch))
    except NameError as error:
        if (axis := re.search(r"unbound axis name: ([^\s.]+)", str(error))) is None:
            raise
        raise UsageError(
            f"The loss computes along the axis '{axis[1]}', as psum, pmean and axis_index do, but a loss is for the "
            "microbatch of one device, and no stage has this axis. Leave the axis out of the loss (also as axis_name "
            "of layers). The pipeline itself takes the mean of the loss and of its gradients over all microbatches, "
            "over the data axis, and over the hosts."
        ) from error
    _check(closed.jaxpr)
    if not jax.sharding.get_abstract_mesh().empty:
        with no_mesh():  # equations keep the mesh that they were traced under, but stages have others
            closed = jax.make_jaxpr(loss)(list(params), list(batch))
    builder = Builder()
    inputs = [builder.new(var.aval) for var in closed.jaxpr.invars]
    outputs = builder.inline(closed.jaxpr, closed.consts, inputs)
    return TracedModel(
        operations=tuple(builder.operations),
        shapes=tuple(builder.shapes),
        params=tuple(inputs[: len(params)]),
        batch=tuple(inputs[len(params) :]),
        rows={},
        stacked={},
        constants=builder.constants,
        outputs=tuple(outputs),
        frozen=frozenset(itertools.compress(inputs, frozen)),
    )


def _axes_of(params: Mapping[str, Any]) -> Any:
    """Returns the axes of a collective: JAX's own have them as a parameter, ours in their extent or site."""
    return params.get("axes") or getattr(params.get("along") or params.get("site"), "axes", ())


def _check(jaxpr: core.Jaxpr) -> None:
    """Raises UsageError if the jaxpr has something in it that no stage can have."""
    for eqn in jaxpr.eqns:
        axes = _axes_of(eqn.params)
        if eqn.effects and axes:
            raise UsageError(
                f"{eqn.primitive.name.removesuffix('_invariant')} over {', '.join(map(repr, axes))}, in a shard_map of "
                f"the loss ({source_line(eqn) or 'or in its derivative'}), goes over devices of a mesh that no stage "
                "has. Take shard_map and its collectives out of the loss. To spread a layer over several devices, give "
                "the pipeline's mesh an axis for that, and say how parameters lie by param_specs of "
                "jax_passing.pipeline: JAX then partitions the layer and adds the sums. The pipeline itself takes the "
                "mean over the data axis."
            )
        if eqn.effects:
            raise UsageError(
                f"{eqn.primitive.name} {source_line(eqn) or 'in the loss'} has a side effect, which no stage can have: "
                "take it out of the loss."
            )
        if eqn.primitive.name == "sharding_constraint":
            raise UsageError(
                f"The sharding constraint {source_line(eqn) or 'in the loss'} is for a mesh that no stage has: take it "
                "out, and say how parameters lie by param_specs of jax_passing.pipeline."
            )
        for param in jax.tree.leaves(eqn.params, is_leaf=is_jaxpr):
            # A kernel's own reads and writes are effects inside of it.
            if is_jaxpr(param) and eqn.primitive.name != "pallas_call":
                _check(param.jaxpr if isinstance(param, core.ClosedJaxpr) else param)


def reached_from(model: TracedModel, sources: Iterable[int]) -> set[int]:
    """Returns the values that depend on any of the sources, and the sources themselves."""
    reached = set(sources)
    for operation in model.operations:
        if reached.intersection(operation.values):
            reached.update(operation.outputs)
    return reached


def in_chain(model: TracedModel) -> list[bool]:
    """Tells of each operation whether it depends on both the parameters and the batch.

    These operations make up the chain that is cut. All others are copied into each stage that uses them: casts of
    parameters, masks, random keys and the like.
    """
    of_params = reached_from(model, [*model.params, *model.rows])
    of_batch = reached_from(model, model.batch)
    return [
        bool(of_params.intersection(operation.values) and of_batch.intersection(operation.values))
        for operation in model.operations
    ]
