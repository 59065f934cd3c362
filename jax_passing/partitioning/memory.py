"""What is kept of a microbatch from its forward pass to its backward pass, operation by operation."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from jax_passing.partitioning.cost import bytes_of
from jax_passing.partitioning.program import Operation, Program, reached_from
from jax_passing.partitioning.stages import Slicer


def stash_bytes_of_chain(slicer: Slicer) -> list[float]:
    """By operation of the chain: what JAX's own derivative of it keeps. A value that several keep counts once, with the
    operation that made it; parameters and the batch are there anyway."""
    stashes = _Stashes(slicer.program)
    place_of = {value: place for place, operation in enumerate(slicer.chain) for value in operation.outputs}
    result = [0.0] * len(slicer.chain)
    counted: set[int] = set()
    for place, operation in enumerate(slicer.chain):
        own_bytes, kept_inputs = stashes.of(operation)
        result[place] += own_bytes
        for index in kept_inputs:
            value = operation.inputs[index]
            if isinstance(value, int) and value in place_of and value not in counted:
                counted.add(value)
                result[place_of[value]] += bytes_of(slicer.program.shapes[value])
    return result


class _Stashes:
    """Like operations are looked at once."""

    def __init__(self, program: Program):
        self._program = program
        self._varying = reached_from(program, [*program.params, *program.rows])
        self._known: dict[Any, tuple[float, list[int]]] = {}

    def of(self, operation: Operation) -> tuple[float, list[int]]:
        """Bytes of its own, and the indices of the inputs that are kept."""
        wanted = tuple(self._needs_gradient(atom) for atom in operation.inputs)
        key = (operation.key, wanted)
        if key not in self._known:
            self._known[key] = self._look_at(operation, wanted) if any(wanted) else (0.0, [])
        return self._known[key]

    def _needs_gradient(self, atom: Any) -> bool:
        is_varying = isinstance(atom, int) and atom in self._varying
        return is_varying and bool(jnp.issubdtype(self._program.shapes[atom].dtype, jnp.inexact))

    def _look_at(self, operation: Operation, wanted: Sequence[bool]) -> tuple[float, list[int]]:
        def kept(*arrays: Any) -> list[Any]:
            def run(*varying: Any) -> list[Any]:
                given = iter(varying)
                every = [next(given) if wants else array for wants, array in zip(wanted, arrays, strict=True)]
                results = operation.run(every)
                return [one for one in results if one is not None and jnp.issubdtype(one.dtype, jnp.inexact)]

            _, back = jax.vjp(run, *(array for wants, array in zip(wanted, arrays, strict=True) if wants))
            return jax.tree.leaves(back)

        shapes = [
            atom.aval if isinstance(atom, core.Literal) else self._program.shapes[atom] for atom in operation.inputs
        ]
        jaxpr = jax.make_jaxpr(kept)(*(jax.ShapeDtypeStruct(shape.shape, shape.dtype) for shape in shapes)).jaxpr
        residuals = {id(atom): atom for atom in jaxpr.outvars if not isinstance(atom, core.Literal)}
        inputs = {id(var): index for index, var in enumerate(jaxpr.invars)}
        own = sum(bytes_of(atom.aval) for number, atom in residuals.items() if number not in inputs)
        return own, [inputs[number] for number in residuals if number in inputs]
