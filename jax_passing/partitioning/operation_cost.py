"""Counts the cost of each operation of a chain: forwards, backwards, and what it keeps in between."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.extend import core

from jax_passing.partitioning.arrays import bytes_of, is_inexact
from jax_passing.partitioning.cost import Cost, cost_of_jaxpr
from jax_passing.partitioning.operations import Operation
from jax_passing.partitioning.stages import Slicer
from jax_passing.partitioning.traced_model import TracedModel, reached_from


@dataclass(frozen=True)
class OperationCost:
    """Holds the cost of one operation.

    Attributes:
      forward, backward: of its result, and of its derivative, without gradients that nothing needs.
      stash_bytes: the part of a microbatch kept from its forward to its backward pass, as JAX's derivative keeps it.
      work_bytes: the gradients that its backward pass takes and makes; of several operations, the most.
    """

    forward: Cost = field(default_factory=Cost)
    backward: Cost = field(default_factory=Cost)
    stash_bytes: float = 0.0
    work_bytes: float = 0.0

    def __add__(self, other: "OperationCost") -> "OperationCost":
        return OperationCost(
            self.forward + other.forward,
            self.backward + other.backward,
            self.stash_bytes + other.stash_bytes,
            max(self.work_bytes, other.work_bytes),
        )


def costs_of_chain(slicer: Slicer) -> list[OperationCost]:
    """Returns the cost of each operation of the chain.

    An operation that is copied for others counts with the first one that uses it. Likewise a value that several
    operations keep counts once, with the operation that made it. Parameters and the batch are there anyway.
    """
    derivatives = _Derivatives(slicer.model)
    maker_of = {value: number for number, operation in enumerate(slicer.chain) for value in operation.outputs}
    result = [OperationCost()] * len(slicer.chain)
    copies: set[int] = set()
    kept: set[int] = set()
    for number, operation in enumerate(slicer.chain):
        _, copied = slicer.needs([operation])
        derivative = derivatives.of(operation)
        result[number] += derivative.cost
        for other in copied:
            if id(other) not in copies:
                copies.add(id(other))
                result[number] += derivatives.of(other).cost
        for index in derivative.kept_inputs:
            value = operation.inputs[index]
            if isinstance(value, int) and value in maker_of and value not in kept:
                kept.add(value)
                result[maker_of[value]] += OperationCost(stash_bytes=bytes_of(slicer.model.shapes[value]))
    return result


@dataclass(frozen=True)
class _Derivative:
    """Holds the cost of an operation's derivative.

    Attributes:
      cost: its stash has only values that the operation itself makes and keeps.
      kept_inputs: indices of the inputs that are kept.
    """

    cost: OperationCost
    kept_inputs: tuple[int, ...] = ()


class _Derivatives:
    """Traces the derivatives of a model's operations, once for operations with the same key."""

    def __init__(self, model: TracedModel):
        self._model = model
        self._varying = reached_from(model, model.trained)
        self._known: dict[Any, _Derivative] = {}

    def of(self, operation: Operation) -> _Derivative:
        wanted = tuple(self._needs_gradient(atom) for atom in operation.inputs)
        shapes = [
            atom.aval if isinstance(atom, core.Literal) else self._model.shapes[atom] for atom in operation.inputs
        ]
        key = (operation.key, tuple(map(str, shapes)), wanted)
        if key not in self._known:
            self._known[key] = _derivative_of(operation, shapes, wanted)
        return self._known[key]

    def _needs_gradient(self, atom: Any) -> bool:
        is_varying = isinstance(atom, int) and atom in self._varying
        return is_varying and is_inexact(self._model.shapes[atom])


def _derivative_of(operation: Operation, shapes: Sequence[Any], wanted: Sequence[bool]) -> _Derivative:
    """Traces what the operation runs, so that one turn of a scan, or a row, counts alone and not as the whole scan.

    `wanted`: by input, whether its gradient is needed.
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
    forward = cost_of_jaxpr(traced)
    if not any(wanted):
        return _Derivative(OperationCost(forward))
    try:
        whole = jax.make_jaxpr(lambda arrays, gradients: vjp(arrays)(gradients))(inputs, traced.out_avals)
    except (TypeError, ValueError):  # a loop without a derivative: if one is needed, JAX says so when it is asked
        return _Derivative(OperationCost(forward))
    cost = cost_of_jaxpr(whole)
    backward = Cost(max(0.0, cost.flops - forward.flops), max(0.0, cost.bytes - forward.bytes))
    # The leaves of a backward pass are the arrays that it closed over.
    jaxpr = jax.make_jaxpr(lambda arrays: jax.tree.leaves(vjp(arrays)))(inputs).jaxpr
    residuals = {id(atom): atom for atom in jaxpr.outvars if not isinstance(atom, core.Literal)}
    index_of = {id(var): index for index, var in enumerate(jaxpr.invars)}
    own_bytes = sum(bytes_of(atom.aval) for number, atom in residuals.items() if number not in index_of)
    kept = tuple(index_of[number] for number in residuals if number in index_of)
    given = sum(bytes_of(shape) for wants, shape in zip(wanted, shapes, strict=True) if wants)
    work_bytes = given + sum(bytes_of(aval) for aval in traced.out_avals)
    return _Derivative(OperationCost(forward, backward, own_bytes, work_bytes), kept)
