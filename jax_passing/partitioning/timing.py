"""How long each operation of a chain takes: predicted from its floating-point operations and bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from jax_passing.partitioning.cost import Cost, of_equation, of_jaxpr
from jax_passing.partitioning.program import Operation, Program, Turn, reached_from
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
        key = (_name(operation), needs_gradient)
        if key not in self._known:
            self._known[key] = self._look_at(operation, needs_gradient)
        return self._known[key]

    def _needs_gradient(self, atom: Any) -> bool:
        if not isinstance(atom, int) or atom not in self._varying:
            return False
        return bool(jnp.issubdtype(self._program.shapes[atom].dtype, jnp.inexact))

    def _look_at(self, operation: Operation, needs_gradient: Sequence[bool]) -> OperationCost:
        forward = of_equation(operation.eqn)
        if isinstance(operation, Turn):
            forward = forward.times(1 / operation.eqn.params["length"])
        if not any(needs_gradient):
            return OperationCost(forward, Cost())
        shapes = [
            atom.aval if isinstance(atom, core.Literal) else self._program.shapes[atom] for atom in operation.inputs
        ]

        def both(arrays: list[Any]) -> Any:
            def run(*wanted: Any) -> list[Any]:
                given = iter(wanted)
                every = [next(given) if wants else array for wants, array in zip(needs_gradient, arrays, strict=True)]
                results = operation.run(every)
                return [one for one in results if one is not None and jnp.issubdtype(one.dtype, jnp.inexact)]

            results, back = jax.vjp(run, *(array for wants, array in zip(needs_gradient, arrays, strict=True) if wants))
            return back([jnp.ones_like(result) for result in results])

        inputs = [jax.ShapeDtypeStruct(shape.shape, shape.dtype) for shape in shapes]
        whole = of_jaxpr(jax.make_jaxpr(both)(inputs))
        return OperationCost(
            forward, Cost(max(0.0, whole.flops - forward.flops), max(0.0, whole.bytes - forward.bytes))
        )


def _name(operation: Operation) -> Any:
    if isinstance(operation, Turn):
        return id(operation.eqn)
    eqn = operation.eqn
    shapes = tuple(str(atom.aval) for atom in eqn.invars)
    return type(operation), eqn.primitive.name, str(eqn.params), shapes


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
