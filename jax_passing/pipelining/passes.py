"""The forward and the backward pass of a stage as functions of arrays alone, the backward pass also in two parts.

Between the two nothing is kept that is there anyway, such as parameters. The parts are those of Qi et al., Zero Bubble
Pipeline Parallelism (ICLR 2024): what the gradients of the stage's inputs need, and what only those of parameters do.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from jax_passing.partitioning.program import WITHOUT_NAMES, Operation, Program, trace
from jax_passing.partitioning.stages import Stage


@dataclass(frozen=True)
class Part:
    """Some operations of a backward pass.

    Attributes:
      inputs: values of the backward pass, which it is called with, in this order.
      outputs: values, or literals, that it returns.
    """

    inputs: tuple[int, ...]
    outputs: tuple["int | core.Literal", ...]
    _operations: tuple[Operation, ...]
    _constants: dict[int, Any]

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        known = self._constants | dict(zip(self.inputs, arrays, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, core.Literal) else known[atom]

        for operation in self._operations:
            results = operation.run([read(atom) for atom in operation.inputs])
            known.update(zip(operation.outputs, results, strict=True))
        return [read(atom) for atom in self.outputs]


class Passes:
    """
    A backward pass is known by numbered values. The first of them are its inputs, in this order: what the stage holds
    of the parameters, what was carried to it, the leaves of the batch that it looks at, what its forward pass has kept,
    and the gradients of what it has carried on (of floating point only).

    Attributes:
      stage: whose.
      held, carried, batch, kept, coming: the values of each of these.
      whole: the backward pass; returns the gradients of what is held, and then of what was carried.
      to_inputs, to_weights: the same in two parts. The first returns the gradients of what was carried, and then
        `handed_over`; the second those of what is held.
      handed_over: values that the second part needs of the first.
    """

    def __init__(self, stage: Stage, held: Sequence[Any], batch: Sequence[Any]):
        """`held`: shapes by piece; `batch`: shapes of all leaves, for one microbatch."""
        self.stage = stage
        self._batch_size = len(batch)
        own = [batch[leaf] for leaf in stage.batch]
        shapes = [list(held), list(stage.carried_in), own]
        self._trees: list[Any] = []
        closed, (_, _, kept) = jax.make_jaxpr(self._forward, return_shape=True)(*shapes)
        jaxpr = closed.jaxpr
        first_kept = len(jaxpr.outvars) - len(kept)
        inputs = {var: index for index, var in enumerate(jaxpr.invars)}
        # Of each array that the backward pass closes over: a literal, an input, or something that is to be kept.
        self._sources: list[tuple[str, Any]] = []
        computed: dict[Any, int] = {}
        for atom in jaxpr.outvars[first_kept:]:
            if isinstance(atom, core.Literal):
                self._sources.append(("literal", atom.val))
            elif atom in inputs:
                self._sources.append(("input", inputs[atom]))
            else:
                self._sources.append(("kept", computed.setdefault(atom, len(computed))))
        outputs = [*jaxpr.outvars[:first_kept], *computed]
        pruned = core.Jaxpr(jaxpr.constvars, jaxpr.invars, outputs, jaxpr.eqns, jaxpr.effects, WITHOUT_NAMES)
        self._run_forward = core.jaxpr_as_fun(core.ClosedJaxpr(pruned, closed.consts))
        self._split_backward(shapes, [var.aval for var in computed])

    def forward(self, held: Sequence[Any], carried: Sequence[Any], batch: Sequence[Any]) -> Any:
        """What is carried on, the outputs that the stage leaves, and what its backward pass needs.

        `batch` has the leaves that the stage looks at, in the order of `stage.batch`.
        """
        results = self._run_forward(*held, *carried, *batch)
        on, left = len(self.stage.carried_out), len(self.stage.outputs)
        return results[:on], results[on : on + left], results[on + left :]

    def _forward(self, held: Sequence[Any], carried: Sequence[Any], own: Sequence[Any]) -> Any:
        batch: list[Any] = [0] * self._batch_size
        for leaf, array in zip(self.stage.batch, own, strict=True):
            batch[leaf] = array
        by_name = {piece.name: array for piece, array in zip(self.stage.pieces, held, strict=True)}
        on, left, back = self.stage.vjp(by_name, carried, batch)
        leaves, tree = jax.tree.flatten(back)
        self._trees.append(tree)
        return on, left, leaves

    def _backward(self, given: Sequence[Any]) -> list[Any]:
        """All gradients, from all inputs."""
        first_kept, first_coming = self.kept.start, self.coming.start
        leaves = []
        for source, what in self._sources:
            match source:
                case "literal":
                    leaves.append(what)
                case "input":
                    leaves.append(given[what])
                case "kept":
                    leaves.append(given[first_kept + what])
        back = jax.tree.unflatten(self._trees[0], leaves)
        gradients = iter(given[first_coming:])
        coming = [
            next(gradients) if _is_inexact(shape) else np.zeros(shape.shape, jax.dtypes.float0)
            for shape in self.stage.carried_out
        ]
        held, carried = back(coming)
        inexact = [one for one, shape in zip(carried, self.stage.carried_in, strict=True) if _is_inexact(shape)]
        return [*(held[piece.name] for piece in self.stage.pieces), *inexact]

    def _split_backward(self, shapes: Sequence[Sequence[Any]], kept: Sequence[Any]) -> None:
        coming = [shape for shape in self.stage.carried_out if _is_inexact(shape)]
        groups = [*shapes, [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in kept], coming]
        ends = np.cumsum([0, *map(len, groups)])
        self.held, self.carried, self.batch, self.kept, self.coming = (
            range(first, last) for first, last in itertools.pairwise(ends)
        )
        # What is given has the numbers 0, 1, 2... in the traced program.
        program = trace(lambda given, _: self._backward(given), [one for group in groups for one in group], [])
        self.whole = _part(program, program.operations, program.outputs)
        weights = program.outputs[: len(self.held)]
        inputs = program.outputs[len(self.held) :]
        first = _needed(program, inputs)
        in_first = {id(operation) for operation in first}
        second = [operation for operation in _needed(program, weights) if id(operation) not in in_first]
        made = {value for operation in first for value in operation.outputs}
        wanted = [*(value for operation in second for value in operation.values), *weights]
        self.handed_over = tuple(sorted(made.intersection(value for value in wanted if isinstance(value, int))))
        self.to_inputs = _part(program, first, (*inputs, *self.handed_over))
        self.to_weights = _part(program, second, weights)


def _needed(program: Program, outputs: Sequence[Any]) -> list[Operation]:
    """The operations that these values are made by."""
    wanted = {value for value in outputs if isinstance(value, int)}
    operations = []
    for operation in reversed(program.operations):
        if wanted.intersection(operation.outputs):
            wanted.update(operation.values)
            operations.append(operation)
    return operations[::-1]


def _part(program: Program, operations: Sequence[Operation], outputs: Sequence[Any]) -> Part:
    made = {value for operation in operations for value in operation.outputs}
    used = {value for operation in operations for value in operation.values}
    used |= {value for value in outputs if isinstance(value, int)}
    inputs = used - made - set(program.constants)
    return Part(tuple(sorted(inputs)), tuple(outputs), tuple(operations), program.constants)


def _is_inexact(shape: Any) -> bool:
    return bool(jnp.issubdtype(shape.dtype, jnp.inexact))
