"""A loss as a flat list of operations on numbered values; those inside of jitted functions are in it themselves."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.api_util import debug_info
from jax.extend import core

from jax_passing.errors import PartitionError

_LIBRARIES = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep for path in (jax.__file__, os.path.dirname(__file__))
)
_FLAX = f"{os.sep}flax{os.sep}"
CHECKPOINT = ("checkpoint", "remat2")
_INLINED = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr"}


_DEBUG_INFO = debug_info("jax_passing.partition", lambda: None, (), {}).with_unknown_names()


@dataclass(frozen=True)
class Operation:
    """What one equation of a jaxpr does.

    Attributes:
      eqn: the equation.
      inputs: numbers of values, or literals.
      outputs: numbers of values.
      scope: in which modules and named scopes it is.
      calls: the calls of jitted functions that it is inside of, the innermost first.
    """

    eqn: core.JaxprEqn
    inputs: tuple["int | core.Literal", ...]
    outputs: tuple[int, ...]
    scope: str
    calls: tuple[core.JaxprEqn, ...]

    @property
    def place(self) -> str:
        """Module path and line of the user's program."""
        return " ".join(filter(None, (self.scope, self.line))) or self.eqn.primitive.name

    @property
    def line(self) -> str:
        """The latter: "(model.py:41)"; empty if nobody knows."""
        # JAX doesn't know of what is inside of its own functions where the user has called them.
        line = next(filter(None, map(line_of, (self.eqn, *self.calls))), "")
        return line and f"({line})"

    @property
    def values(self) -> list[int]:
        """The inputs that aren't literals."""
        return [value for value in self.inputs if isinstance(value, int)]

    @property
    def key(self) -> Any:
        """Operations with the same one cost the same, given inputs of the same shapes."""
        # The values of scalars inside of them are left out: with Flax, each layer's dropout has a number of its own.
        return self.eqn.primitive.name, re.sub(r"\S+:(\w+\[\])", r"\1", str(self.eqn.params))

    def run(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """Its outputs, given its inputs. Keeps the equation's place in the user's program, and its derivative rules."""
        pairs = zip(self.eqn.invars, arrays, strict=True)
        given = {atom: array for atom, array in pairs if not isinstance(atom, core.Literal)}
        kept = [var for var in self.eqn.outvars if not isinstance(var, core.DropVar)]
        jaxpr = core.Jaxpr((), list(given), kept, [self.eqn], self.eqn.effects, _DEBUG_INFO)
        results = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, ()))(*given.values())
        found = dict(zip(kept, results, strict=True))
        return [found.get(var) for var in self.eqn.outvars]


@dataclass(frozen=True)
class Turn(Operation):
    """One turn of a scan; `eqn` is the whole scan. Its rows of the stacked inputs come as arrays of one row.

    Attributes:
      scan: which scan.
    """

    scan: int

    @property
    def key(self) -> Any:
        return "turn", id(self.eqn)

    def run(self, arrays: Sequence[Any]) -> Sequence[Any]:
        return run_turns(self.eqn, arrays, 1)


def run_turns(eqn: core.JaxprEqn, arrays: Sequence[Any], count: int) -> Sequence[Any]:
    """So many turns of a scan."""
    results: Sequence[Any] = eqn.primitive.bind(*arrays, **{**eqn.params, "length": count, "unroll": 1})
    return results


def scan_counts(eqn: core.JaxprEqn) -> tuple[int, int]:
    """How many inputs of a scan all turns share, and how many values each turn hands to the next.

    What a scan goes over, and what it stacks, has a dimension more than in its body. (The scan's own parameters, which
    say the same, differ between versions of JAX.)
    """

    def stacked(outer: Sequence[Any], inner: Sequence[Any]) -> int:
        pairs = zip(outer, inner, strict=True)
        return sum(len(whole.aval.shape) > len(one.shape) for whole, one in pairs)

    body = eqn.params["jaxpr"]
    handed_on = len(eqn.outvars) - stacked(eqn.outvars, body.out_avals)
    return len(eqn.invars) - stacked(eqn.invars, body.in_avals) - handed_on, handed_on


@dataclass(frozen=True)
class TakeRow(Operation):
    """A row of what a scan goes over."""

    row: int

    @property
    def key(self) -> Any:
        return "row", id(self.eqn)

    def run(self, arrays: Sequence[Any]) -> Sequence[Any]:
        return [lax.slice_in_dim(arrays[0], self.row, self.row + 1)]


@dataclass(frozen=True)
class StackRows(Operation):
    """What the turns of a scan have left, one row each, as one array."""

    @property
    def key(self) -> Any:
        return "stack", id(self.eqn)

    def run(self, arrays: Sequence[Any]) -> Sequence[Any]:
        return [lax.concatenate(arrays, 0)]


@dataclass(frozen=True)
class Row:
    """A value that is a row of a parameter: what one turn of a scan over stacked layers uses."""

    param: int
    row: int


@dataclass(frozen=True)
class Program:
    """
    Attributes:
      operations: each after those whose outputs it uses.
      shapes: by value.
      params, batch: the values of their leaves.
      rows: of the values that are rows of a parameter.
      stacked: by value, the rows that it is made of: what the turns of a scan leave, if that is an output of the
        program and nothing else. Each stage leaves the rows of its own turns.
      constants: by value, arrays that the loss closed over.
      outputs: values, or literals.
    """

    operations: tuple[Operation, ...]
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    params: tuple[int, ...]
    batch: tuple[int, ...]
    rows: dict[int, Row]
    stacked: dict[int, tuple[int, ...]]
    constants: dict[int, Any]
    outputs: tuple["int | core.Literal", ...]


class Builder:
    """Makes a flat list of operations of a jaxpr."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.shapes: list[jax.ShapeDtypeStruct] = []
        self.constants: dict[int, Any] = {}
        self.rows: dict[int, Row] = {}

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
        """Numbers of the outputs, or literals. `outer` and `calls`: the scope and the calls that the jaxpr is in."""
        known: dict[core.Var, Any] = dict(zip(jaxpr.invars, inputs, strict=True))
        for var, array in zip(jaxpr.constvars, constants, strict=True):
            known[var] = self.new(var.aval)
            self.constants[known[var]] = jnp.asarray(array)  # tracers are no indices of JAX's constants of NumPy's kind

        def read(atom: Any) -> Any:
            return atom if isinstance(atom, core.Literal) else known[atom]

        for eqn in jaxpr.eqns:
            arguments = [read(atom) for atom in eqn.invars]
            scope = "/".join(filter(None, (outer, str(eqn.source_info.name_stack))))
            if (called := _INLINED.get(eqn.primitive.name)) is not None:
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
        """An operation; returns its outputs."""
        results = [self.new(var.aval) for var in eqn.outvars]
        self.operations.append(Operation(eqn, tuple(arguments), tuple(results), scope, calls))
        return results


def trace(loss: Callable[..., Any], params: Sequence[Any], batch: Sequence[Any]) -> Program:
    """`loss(params, batch)` of lists of leaves, arrays or their shapes, returns a list of leaves.

    Raises PartitionError if there is something in it that no stage can have.
    """
    try:
        closed = jax.make_jaxpr(loss)(list(params), list(batch))
    except NameError as error:
        if (axis := re.search(r"unbound axis name: ([^\s.]+)", str(error))) is None:
            raise
        raise PartitionError(
            f"The loss computes along the axis '{axis[1]}', as psum, pmean and axis_index do, and no stage has that: a "
            "loss is that of one device's microbatch. Leave it out of the loss (as axis_name of layers, too). The "
            "pipeline itself takes the mean of the loss and of its gradients over all microbatches, over the data "
            "axis, and over the hosts."
        ) from error
    _check(closed.jaxpr)
    if not jax.sharding.get_abstract_mesh().empty:
        with no_mesh():  # equations keep the mesh that they were traced under, and stages have others
            closed = jax.make_jaxpr(loss)(list(params), list(batch))
    builder = Builder()
    inputs = [builder.new(var.aval) for var in closed.jaxpr.invars]
    outputs = builder.inline(closed.jaxpr, closed.consts, inputs)
    return Program(
        operations=tuple(builder.operations),
        shapes=tuple(builder.shapes),
        params=tuple(inputs[: len(params)]),
        batch=tuple(inputs[len(params) :]),
        rows={},
        stacked={},
        constants=builder.constants,
        outputs=tuple(outputs),
    )


def no_mesh() -> Any:
    """A context in which `jax.set_mesh` has not been called."""
    return jax.set_mesh(jax.sharding.Mesh(np.empty((), object), ()))


def _check(jaxpr: core.Jaxpr) -> None:
    """Raises PartitionError if there is something that no stage can have."""
    for eqn in jaxpr.eqns:
        axes = eqn.params.get("axes") or getattr(eqn.params.get("along"), "axes", None)  # of JAX's sum, of ours
        if eqn.effects and axes:
            raise PartitionError(
                f"{eqn.primitive.name.removesuffix('_invariant')} over {', '.join(map(repr, axes))}, in a shard_map of "
                f"the loss ({line_of(eqn) or 'or in its derivative'}), goes over devices of a mesh that no stage has. "
                "Take shard_map out of the loss, and its collectives. Where a layer is to lie on several devices, give "
                "the pipeline's mesh an axis for that, and say how parameters lie by param_specs of "
                "jax_passing.pipeline: JAX then partitions the layer, and adds up itself. The mean over the data axis "
                "is the pipeline's own."
            )
        if eqn.effects:
            raise PartitionError(
                f"{eqn.primitive.name} {line_of(eqn) or 'in the loss'} has a side effect, which no stage can have: "
                "take it out of the loss."
            )
        if eqn.primitive.name == "sharding_constraint":
            raise PartitionError(
                f"The sharding constraint {line_of(eqn) or 'in the loss'} is for a mesh that no stage has: take it "
                "out, and say how parameters lie by param_specs of jax_passing.pipeline."
            )
        for param in jax.tree.leaves(eqn.params, is_leaf=_is_jaxpr):
            if _is_jaxpr(param):
                _check(param.jaxpr if isinstance(param, core.ClosedJaxpr) else param)


def _is_jaxpr(param: Any) -> bool:
    return isinstance(param, (core.Jaxpr, core.ClosedJaxpr))


def holds_operations(eqn: core.JaxprEqn) -> bool:
    """Tells whether there is a program inside of it."""
    return any(map(_is_jaxpr, jax.tree.leaves(eqn.params, is_leaf=_is_jaxpr)))


def reached_from(program: Program, sources: Sequence[int]) -> set[int]:
    """The values that depend on these, which are among them."""
    reached = set(sources)
    for operation in program.operations:
        if reached.intersection(operation.values):
            reached.update(operation.outputs)
    return reached


def line_of(eqn: core.JaxprEqn) -> str:
    """Of the user's program: "model.py:41"; empty if nobody knows."""
    traceback = eqn.source_info.traceback
    frames: list[Any] = traceback.frames if traceback is not None else []
    for frame in frames:
        if not frame.file_name.startswith(_LIBRARIES) and _FLAX not in frame.file_name:
            return f"{os.path.basename(frame.file_name)}:{frame.line_num}"
    return ""


def spine(program: Program) -> list[bool]:
    """By operation, whether it depends on parameters and on the batch.

    Those operations make up the chain that is cut. All others are copied into each stage that uses them: they are casts
    of parameters, masks, keys and the like.
    """
    of_params = reached_from(program, [*program.params, *program.rows])
    of_batch = reached_from(program, program.batch)
    return [
        bool(of_params.intersection(operation.values) and of_batch.intersection(operation.values))
        for operation in program.operations
    ]


def is_inexact(shape: Any) -> bool:
    return bool(jnp.issubdtype(shape.dtype, jnp.inexact))


def shape_of(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)
