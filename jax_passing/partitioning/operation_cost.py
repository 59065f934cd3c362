"""What each operation of a chain costs: forwards, backwards, and what it keeps in between."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.extend import core

from jax_passing.partitioning.cost import Cost, bytes_of, of_jaxpr
from jax_passing.partitioning.program import Operation, Program, is_inexact, reached_from
from jax_passing.partitioning.stages import Slicer


@dataclass(frozen=True)
class OperationCost:
    """
    Attributes:
      forward, backward: of its own result, and of its derivative without what nobody asks for.
      stash_bytes: what is kept of a microbatch from its forward to its backward pass, as JAX's own derivative does.
    """

    forward: Cost = field(default_factory=Cost)
    backward: Cost = field(default_factory=Cost)
    stash_bytes: float = 0.0

    def __add__(self, other: "OperationCost") -> "OperationCost":
        return OperationCost(
            self.forward + other.forward, self.backward + other.backward, self.stash_bytes + other.stash_bytes
        )


def costs_of_chain(slicer: Slicer) -> list[OperationCost]:
    """By operation of the chain.

    What is copied for an operation counts with the first one that uses it. Likewise a value that several keep counts
    once, with the operation that made it; parameters and the batch are there anyway.
    """
    derivatives = _Derivatives(slicer.program)
    place_of = {value: place for place, operation in enumerate(slicer.chain) for value in operation.outputs}
    result = [OperationCost()] * len(slicer.chain)
    copies: set[int] = set()
    kept: set[int] = set()
    for place, operation in enumerate(slicer.chain):
        _, copied = slicer.needs([operation])
        derivative = derivatives.of(operation)
        result[place] += derivative.cost
        for other in copied:
            if id(other) not in copies:
                copies.add(id(other))
                result[place] += derivatives.of(other).cost
        for index in derivative.kept_inputs:
            value = operation.inputs[index]
            if isinstance(value, int) and value in place_of and value not in kept:
                kept.add(value)
                result[place_of[value]] += OperationCost(stash_bytes=bytes_of(slicer.program.shapes[value]))
    return result


@dataclass(frozen=True)
class _Derivative:
    """
    Attributes:
      cost: with what is kept of the operation's own making.
      kept_inputs: indices of the inputs that are kept.
    """

    cost: OperationCost
    kept_inputs: tuple[int, ...] = ()


class _Derivatives:
    """Those of a program's operations. Operations that are alike are traced once."""

    def __init__(self, program: Program):
        self._program = program
        self._varying = reached_from(program, [*program.params, *program.rows])
        self._known: dict[Any, _Derivative] = {}

    def of(self, operation: Operation) -> _Derivative:
        wanted = tuple(self._needs_gradient(atom) for atom in operation.inputs)
        shapes = [
            atom.aval if isinstance(atom, core.Literal) else self._program.shapes[atom] for atom in operation.inputs
        ]
        key = (operation.key, tuple(map(str, shapes)), wanted)
        if key not in self._known:
            self._known[key] = _derivative_of(operation, shapes, wanted)
        return self._known[key]

    def _needs_gradient(self, atom: Any) -> bool:
        is_varying = isinstance(atom, int) and atom in self._varying
        return is_varying and is_inexact(self._program.shapes[atom])


def _derivative_of(operation: Operation, shapes: Sequence[Any], wanted: Sequence[bool]) -> _Derivative:
    """What runs is traced, so that one turn of a scan, or a row, counts for itself and not for the whole scan.

    `wanted`: by input, whether anybody needs its gradient.
    """

    def run(arrays: Sequence[Any]) -> list[Any]:
        results = operation.run(arrays)
        return [one for one in results if one is not None and is_inexact(one)]

    def vjp(arrays: Sequence[Any]) -> Callable[..., Any]:
        def run_with(*varying: Any) -> list[Any]:
            given = iter(varying)
            return run([next(given) if wants else one for wants, one in zip(wanted, arrays, strict=True)])

        _, back = jax.vjp(run_with, *(one for wants, one in zip(wanted, arrays, strict=True) if wants))
        return back

    inputs = [jax.ShapeDtypeStruct(shape.shape, shape.dtype) for shape in shapes]
    traced = jax.make_jaxpr(run)(inputs)
    forward = of_jaxpr(traced)
    if not any(wanted):
        return _Derivative(OperationCost(forward))
    try:
        whole = of_jaxpr(jax.make_jaxpr(lambda arrays, gradients: vjp(arrays)(gradients))(inputs, traced.out_avals))
    except (TypeError, ValueError):  # a loop without a derivative: either nobody asks for it, or JAX will say so then
        return _Derivative(OperationCost(forward))
    backward = Cost(max(0.0, whole.flops - forward.flops), max(0.0, whole.bytes - forward.bytes))
    # The leaves of a backward pass are what it closed over.
    jaxpr = jax.make_jaxpr(lambda arrays: jax.tree.leaves(vjp(arrays)))(inputs).jaxpr
    residuals = {id(atom): atom for atom in jaxpr.outvars if not isinstance(atom, core.Literal)}
    index_of = {id(var): index for index, var in enumerate(jaxpr.invars)}
    own_bytes = sum(bytes_of(atom.aval) for number, atom in residuals.items() if number not in index_of)
    kept = tuple(index_of[number] for number in residuals if number in index_of)
    return _Derivative(OperationCost(forward, backward, own_bytes), kept)
