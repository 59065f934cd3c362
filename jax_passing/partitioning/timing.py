"""How long each operation of a chain takes: predicted from its floating-point operations and bytes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from jax_passing.partitioning.cost import Cost, of_jaxpr
from jax_passing.partitioning.program import Operation, Program, reached_from
from jax_passing.partitioning.stages import Slicer


@dataclass(frozen=True)
class Device:
    """The roofline of a device (Williams et al., Roofline, CACM 2009): it computes, or it moves bytes."""

    flops_per_s: float
    bytes_per_s: float

    def time_s(self, cost: Cost) -> float:
        return max(cost.flops / self.flops_per_s, cost.bytes / self.bytes_per_s)


@dataclass(frozen=True)
class OperationCost:
    forward: Cost
    backward: Cost

    def __add__(self, other: "OperationCost") -> "OperationCost":
        return OperationCost(self.forward + other.forward, self.backward + other.backward)


class Costs:
    """Of a program's operations, forwards and backwards. Like operations are looked at once."""

    def __init__(self, program: Program):
        self._program = program
        self._varying = reached_from(program, [*program.params, *program.rows])
        self._known: dict[Any, OperationCost] = {}

    def of(self, operation: Operation) -> OperationCost:
        needs_gradient = tuple(self._needs_gradient(atom) for atom in operation.inputs)
        shapes = [
            atom.aval if isinstance(atom, core.Literal) else self._program.shapes[atom] for atom in operation.inputs
        ]
        key = (_name(operation), tuple(map(str, shapes)), needs_gradient)
        if key not in self._known:
            self._known[key] = _look_at(operation, shapes, needs_gradient)
        return self._known[key]

    def _needs_gradient(self, atom: Any) -> bool:
        if not isinstance(atom, int) or atom not in self._varying:
            return False
        return bool(jnp.issubdtype(self._program.shapes[atom].dtype, jnp.inexact))


def _look_at(operation: Operation, shapes: Sequence[Any], needs_gradient: Sequence[bool]) -> OperationCost:
    """By tracing what runs, so that one turn of a scan, or a row, counts for itself and not for the whole scan."""

    def run(arrays: Sequence[Any]) -> list[Any]:
        results = operation.run(arrays)
        return [one for one in results if one is not None and jnp.issubdtype(one.dtype, jnp.inexact)]

    inputs = [jax.ShapeDtypeStruct(shape.shape, shape.dtype) for shape in shapes]
    traced = jax.make_jaxpr(run)(inputs)
    forward = of_jaxpr(traced)
    if not any(needs_gradient):
        return OperationCost(forward, Cost())

    def both(arrays: Sequence[Any], gradients: list[Any]) -> Any:
        def run_with(*wanted: Any) -> list[Any]:
            given = iter(wanted)
            return run([next(given) if wants else one for wants, one in zip(needs_gradient, arrays, strict=True)])

        _, back = jax.vjp(run_with, *(one for wants, one in zip(needs_gradient, arrays, strict=True) if wants))
        return back(gradients)

    whole = of_jaxpr(jax.make_jaxpr(both)(inputs, traced.out_avals))
    return OperationCost(forward, Cost(max(0.0, whole.flops - forward.flops), max(0.0, whole.bytes - forward.bytes)))


def _name(operation: Operation) -> Any:
    """The same for operations that cost the same, given inputs of the same shapes."""
    if type(operation) is Operation:
        # The values of scalars inside of them are left out: with Flax, each layer's dropout has a number of its own.
        return operation.eqn.primitive.name, re.sub(r"\S+:(\w+\[\])", r"\1", str(operation.eqn.params))
    return type(operation), id(operation.eqn)  # a part of a scan


def costs_of_chain(slicer: Slicer) -> list[OperationCost]:
    """By operation of the chain. What is copied for it counts with the first one that uses it."""
    costs = Costs(slicer.program)
    result = []
    counted: set[int] = set()
    for operation in slicer.chain:
        _, copied = slicer.needs([operation])
        cost = costs.of(operation)
        for other in copied:
            if id(other) not in counted:
                counted.add(id(other))
                cost = cost + costs.of(other)
        result.append(cost)
    return result
