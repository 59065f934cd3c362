"""Digests what operations compute. The digest is the same in all processes that have traced the same model.

It depends neither on numbers that JAX or Python count up nor on addresses in memory: values are numbered as they come.
"""

import dataclasses
import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from jax_passing.partitioning.operations import Operation, TakeRow

ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


def digest_of(
    operations: Sequence[Operation], inputs: Sequence[int], outputs: Sequence[Any], constants: Mapping[int, Any]
) -> str:
    """Returns a hexadecimal digest of how the outputs follow from the inputs, and of the bits of the constants used.

    Functions that an equation only refers to (as to a custom derivative) count by their names. In the passes of a
    pipeline's stages JAX has replaced them by their operations.
    """
    words, hashed = _Words(), hashlib.sha256()
    names = _Names()

    def text(atom: Any) -> str:
        if isinstance(atom, core.Literal):
            return words.of(atom)
        return words.of(constants[atom]) if atom in constants and atom not in names else names.of(atom)

    hashed.update(" ".join(map(names.of, inputs)).encode())
    for operation in operations:
        row = f"row {operation.row}" if isinstance(operation, TakeRow) else ""
        line = [type(operation).__name__, row, words.of_equation(operation.eqn), *map(text, operation.inputs), "->"]
        hashed.update("\n".join([*line, *map(names.of, operation.outputs)]).encode())
    hashed.update(" ".join(map(text, outputs)).encode())
    return hashed.hexdigest()


class _Names(dict[Any, int]):
    """Numbers values or variables in the order in which they come."""

    def of(self, value: Any) -> str:
        return f"%{self.setdefault(value, len(self))}"


class _Words:
    """Writes equations and their parameters as text."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, str]] = {}  # by id; holding the object keeps its id its own

    def of(self, value: Any) -> str:
        match value:
            case core.Literal():
                return f"{self.of(value.val)}:{value.aval}"
            case core.ClosedJaxpr() | core.Jaxpr():  # one class since JAX 0.12
                return f"{self._of_jaxpr(getattr(value, 'jaxpr', value))} {self.of(getattr(value, 'consts', ()))}"
            case np.ndarray() | np.generic() | jax.Array():
                return _of_array(value)
            case Enum():
                return str(value)
            case Mapping():
                return str(sorted((self.of(key), self.of(one)) for key, one in value.items()))
            case set() | frozenset():
                return str(sorted(map(self.of, value)))
            case tuple() | list():
                return f"{type(value).__name__}{list(map(self.of, value))}"
            case functools.partial():
                return self.of((value.func, value.args, value.keywords))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value) if one.compare}
            return f"{type(value).__name__}{self.of(fields)}"
        if callable(value):
            return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
        return ADDRESS.sub("", repr(value))

    def of_equation(self, eqn: Any) -> str:
        if id(eqn) not in self._known:
            avals = ", ".join(str(var.aval) for var in eqn.outvars)
            self._known[id(eqn)] = eqn, f"{eqn.primitive.name} {self.of(dict(eqn.params))} {avals}"
        return self._known[id(eqn)][1]

    def _of_jaxpr(self, jaxpr: Any) -> str:
        """Returns a digest instead of the text, since the same jaxpr may be in many equations."""
        if id(jaxpr) not in self._known:
            names = _Names()

            def text(atom: Any) -> str:
                return self.of(atom) if isinstance(atom, core.Literal) else names.of(atom)

            lines = [f"{names.of(var)}:{var.aval}" for var in (*jaxpr.constvars, *jaxpr.invars)]
            for eqn in jaxpr.eqns:
                lines.append(" ".join([self.of_equation(eqn), *map(text, eqn.invars), "->", *map(text, eqn.outvars)]))
            lines.append(" ".join(map(text, jaxpr.outvars)))
            self._known[id(jaxpr)] = jaxpr, hashlib.sha256("\n".join(lines).encode()).hexdigest()
        return self._known[id(jaxpr)][1]


def _of_array(array: Any) -> str:
    """Returns dtype, shape and bits; for an array with parts in other processes, its sharding instead of the bits."""
    if isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return f"{jax.random.key_impl(array)} {_of_array(jax.random.key_data(array))}"
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return f"{array.dtype}{array.shape} {array.sharding}"
    bits = np.asarray(array)
    return f"{bits.dtype}{bits.shape} {hashlib.sha256(bits.tobytes()).hexdigest()}"
