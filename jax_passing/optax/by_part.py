"""Runs an optimizer, which was traced for whole arrays, on this device's parts of them.

Names, masks and shapes are those of the whole tree, as it is traced with that. Then each operation is carried out on
parts, if it works element by element; one that makes a number of all elements, such as the sum of their squares, does
so on each device, and the numbers are added up over the devices. An operation that mixes elements otherwise (products
of matrices, means of rows) is refused by name.

A value of the traced program is in one of four forms:

- an array: the same on all devices;
- `Uniform`, an array whose elements are all the same number;
- `Dealt`, an array of which this device has a part;
- `Partial`, a number that is complete once it has been summed, or compared, over the devices. Those that are waiting
  for that go together. The sum of two is one, too: so a norm of all parameters takes one sum over the hosts.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from jax_passing.collective.pmax import pmax, pmin
from jax_passing.collective.primitives.composed import varying
from jax_passing.collective.psum import psum
from jax_passing.errors import ConfigError
from jax_passing.optax.parts import Dealer, is_dealt
from jax_passing.partitioning.operations import JITTED, WRAPPED, source_line

# Each element of the results comes from the elements of the operands at the same position alone.
ELEMENTWISE = frozenset((
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil",
    "clamp", "clz", "complex", "conj", "convert_element_type", "copy", "copy_p", "cos", "cosh", "digamma", "div",
    "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "igamma", "imag", "integer_pow",
    "is_finite", "le", "lgamma", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter",
    "not", "or", "population_count", "pow", "real", "reduce_precision", "rem", "round", "rsqrt", "select_n",
    "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt", "square",
    "stop_gradient", "sub", "tan", "tanh", "xor",
))  # fmt: skip
_CALLS = {**JITTED, **WRAPPED}
_RESHAPED = ("reshape", "squeeze", "broadcast_in_dim", "expand_dims")  # those that keep the order of elements
# A reduction of a part, what padding counts as there, and how devices' results come together.
_REDUCTIONS: dict[str, tuple[Callable[..., Any], Any, str]] = {
    "reduce_sum": (jnp.sum, 0, "sum"),
    "reduce_max": (jnp.max, -jnp.inf, "max"),
    "reduce_min": (jnp.min, jnp.inf, "min"),
    "reduce_and": (jnp.all, True, "and"),
    "reduce_or": (jnp.any, False, "or"),
}


@dataclass
class Uniform:
    """Stands for an array of equal elements by one of them, []."""

    element: jax.Array


@dataclass
class Dealt:
    """Stands for an array by this device's part, [c]; `name` is that of an argument that it comes from."""

    part: jax.Array
    name: str


@dataclass
class Partial:
    """Stands for a number, [], by this device's `own`, until it is `known`. Devices' numbers come together by `op`."""

    own: jax.Array
    op: str
    known: jax.Array | None = None


class ByPart:
    """Carries out the operations of jaxprs.

    Attributes:
      dealer: knows the axis.
      shapes: of arrays that are dealt.
    """

    def __init__(self, dealer: Dealer, shapes: frozenset[tuple[int, ...]]):
        self.dealer, self.shapes = dealer, shapes
        self._waiting: list[Partial] = []

    def run(self, jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        """Returns the results of a jaxpr, in any of the forms."""
        known: dict[Any, Any] = dict(zip(jaxpr.constvars, map(jnp.asarray, constants), strict=True))  # some are numpy's
        known |= dict(zip(jaxpr.invars, arguments, strict=True))

        def read(atom: Any) -> Any:
            aval: Any = atom.aval
            return jnp.asarray(atom.val, aval.dtype) if isinstance(atom, core.Literal) else known[atom]

        for eqn in jaxpr.eqns:
            operands = [read(atom) for atom in eqn.invars]
            results: Sequence[Any]
            if (called := _CALLS.get(eqn.primitive.name)) is not None:
                inner = eqn.params[called]
                inner, consts = (inner.jaxpr, inner.consts) if isinstance(inner, core.ClosedJaxpr) else (inner, ())
                results = self.run(inner, consts, operands)
            else:
                results = self._carry_out(eqn, operands)
            known.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    # Forms.

    def dealt(self, value: Any, name: str = "") -> Dealt:
        """Returns any value as this device's part."""
        if isinstance(value, Dealt):
            return value
        return Dealt(self.dealer.cut(value), name)

    def part(self, value: Any, aval: Any) -> jax.Array:
        """Returns this device's part of a value of this type, [c]."""
        if isinstance(value, Uniform):
            length = -(-math.prod(aval.shape) // self.dealer.count)
            return varying(jnp.full((length,), value.element), self.dealer.axes)
        return self.dealt(self._settled(value)).part

    def whole(self, value: Any, aval: Any, what: str) -> jax.Array:
        """Returns all of a value of this type. Raises ConfigError if it is dealt."""
        if isinstance(value, Dealt):
            raise ConfigError(
                f"sharded: {what} has the shape {tuple(aval.shape)}, which no parameter has, or isn't of floats. So "
                f"each device has all of it; but the optimizer makes it of {value.name}, of which a device has a part. "
                f"{REMEDY}"
            )
        if isinstance(value, Uniform):
            return jnp.full(aval.shape, value.element)
        return self._settled(value)

    def _settled(self, value: Any) -> Any:
        """Returns the number itself for one that has been waiting for other devices."""
        if not isinstance(value, Partial):
            return value
        if value.known is None:
            if all(each is not value for each in self._waiting):  # as a sum has taken its place, but it is used itself
                self._waiting.append(value)
            self._settle()
        return value.known

    def _settle(self) -> None:
        """Brings the numbers of all devices together."""
        by_op: dict[str, list[Partial]] = {}
        for each in self._waiting:
            by_op.setdefault(each.op, []).append(each)
        self._waiting = []
        axis_name = self.dealer.axis_name
        sums, ands, ors = by_op.get("sum", []), by_op.get("and", []), by_op.get("or", [])
        if sums or ands or ors:
            counted = [(~each.own).astype(jnp.int32) for each in ands] + [each.own.astype(jnp.int32) for each in ors]
            totals, counts = psum(([each.own for each in sums], counted), axis_name)
            for each, total in zip(sums, totals, strict=True):
                each.known = total
            for each, count in zip([*ands, *ors], counts, strict=True):
                each.known = count == 0 if each.op == "and" else count > 0
        for op, function in (("max", pmax), ("min", pmin)):
            if several := by_op.get(op):
                for each, known in zip(several, function([each.own for each in several], axis_name), strict=True):
                    each.known = known

    # Operations.

    def _carry_out(self, eqn: Any, operands: list[Any]) -> Sequence[Any]:
        name, result = eqn.primitive.name, eqn.outvars[0].aval
        if name == "cond":
            return self._cond(eqn, operands)
        if name in _RESHAPED and (form := self._reshaped(eqn, operands[0], result)) is not None:
            return [form]
        if (total := self._sum_of_partials(eqn, operands)) is not None:
            return [total]
        operands = [self._settled(each) for each in operands]
        is_dealt_here = any(isinstance(each, Dealt) for each in operands)
        if name in ELEMENTWISE and is_dealt_here:
            return self._elementwise(eqn, operands)
        if name in ELEMENTWISE and result.shape and all(map(_is_number, operands)):
            numbers = [each.element if isinstance(each, Uniform) else each for each in operands]
            return [Uniform(each) for each in _bind(eqn, numbers)]
        if name in ("optimization_barrier", "reshard"):  # the latter of JAX's own shardings, as a ravel has it
            return operands
        if is_dealt_here:
            if (number := self._number_of(eqn, operands)) is not None:
                return [number]
            raise self._refused(eqn, operands)
        return _bind(eqn, [self.whole(v, atom.aval, "") for v, atom in zip(operands, eqn.invars, strict=True)])

    def _reshaped(self, eqn: Any, value: Any, aval: Any) -> Any:
        """Returns the value in its form, if an operation that gives it another shape leaves the order of elements."""
        count, before = math.prod(aval.shape), math.prod(eqn.invars[0].aval.shape)
        if len(eqn.invars) > 1 or (eqn.primitive.name == "reshape" and eqn.params.get("dimensions") is not None):
            return None
        if isinstance(value, Partial) and count == 1:
            return value if aval.shape == () else self._settled(value).reshape(aval.shape)
        value = self._settled(value)
        if isinstance(value, Dealt):
            return value if count == before else None
        if isinstance(value, Uniform):
            return value
        return Uniform(value.reshape(())) if before == 1 and count > 1 else None

    def _sum_of_partials(self, eqn: Any, operands: list[Any]) -> Partial | None:
        if eqn.primitive.name not in ("add", "add_any") or eqn.outvars[0].aval.shape != ():
            return None
        if not all(isinstance(each, Partial) and each.op == "sum" and each.known is None for each in operands):
            return None
        self._waiting = [each for each in self._waiting if all(each is not one for one in operands)]
        return self._partial(_bind(eqn, [each.own for each in operands])[0], "sum")

    def _partial(self, own: jax.Array, op: str) -> Partial:
        self._waiting.append(Partial(own, op))
        return self._waiting[-1]

    def _elementwise(self, eqn: Any, operands: list[Any]) -> list[Any]:
        name = next(each.name for each in operands if isinstance(each, Dealt))
        length = next(each.part.size for each in operands if isinstance(each, Dealt))
        given, shape = [], eqn.outvars[0].aval.shape
        for value, atom in zip(operands, eqn.invars, strict=True):
            if isinstance(value, Dealt) and atom.aval.shape != shape:
                raise self._refused(eqn, operands)
            if not isinstance(value, Dealt | Uniform):
                # Dimensions of one element are as long as those of the others.
                value = Uniform(value.reshape(())) if value.size == 1 else jnp.broadcast_to(value, shape)
            if isinstance(value, Uniform):
                given.append(varying(jnp.full((length,), value.element), self.dealer.axes))
            else:
                given.append(self.part(value, atom.aval))
        assert all(each.shape == (length,) for each in given), (eqn, [each.shape for each in given])
        return [Dealt(each, name) for each in _bind(eqn, given)]

    def _number_of(self, eqn: Any, operands: list[Any]) -> Any:
        """Returns a number that is made of all elements of arrays; None if this operation makes none."""
        name, aval, result = eqn.primitive.name, eqn.invars[0].aval, eqn.outvars[0].aval
        if math.prod(result.shape) != 1:
            return None
        if name == "dot_general" and all(atom.aval.ndim == 1 for atom in eqn.invars):
            dtype = result.dtype
            factors = [
                self.part(each, atom.aval).astype(dtype) for each, atom in zip(operands, eqn.invars, strict=True)
            ]
            return self._partial(jnp.sum(self._without_padding(factors[0] * factors[1], aval, 0)), "sum")
        if name not in _REDUCTIONS:
            return None
        reduce, neutral, op = _REDUCTIONS[name]
        own = reduce(self._without_padding(operands[0].part, aval, neutral)).astype(result.dtype)
        number = self._partial(own, op)
        return number if result.shape == () else self._settled(number).reshape(result.shape)

    def _without_padding(self, part: jax.Array, aval: Any, neutral: Any) -> jax.Array:
        size = math.prod(aval.shape)
        if part.size * self.dealer.count == size:
            return part
        position = self.dealer.index() * part.size + jnp.arange(part.size, dtype=jnp.int32)
        if jnp.issubdtype(part.dtype, jnp.integer) and abs(neutral) == jnp.inf:
            limits = jnp.iinfo(part.dtype)
            neutral = limits.max if neutral > 0 else limits.min
        return jnp.where(position < size, part, jnp.asarray(neutral, part.dtype))

    def _cond(self, eqn: Any, operands: list[Any]) -> list[Any]:
        """All devices take the same branch, as it depends on no value that is dealt; so sums may be in there."""
        index, *rest = [self._settled(each) for each in operands]
        branches = eqn.params["branches"]
        index = self.whole(index, eqn.invars[0].aval, "the condition of a cond")
        arrays = [each.part if isinstance(each, Dealt) else getattr(each, "element", each) for each in rest]

        def branch(closed: core.ClosedJaxpr) -> Callable[..., Any]:
            def run(*arrays: Any) -> list[Any]:
                given = [
                    Dealt(array, was.name) if isinstance(was, Dealt) else Uniform(array) if isinstance(was, Uniform)
                    else array for array, was in zip(arrays, rest, strict=True)
                ]  # fmt: skip
                inside = ByPart(self.dealer, self.shapes)
                results = inside.run(closed.jaxpr, closed.consts, given)
                return [inside.as_state(each, aval, "a result of a cond") for each, aval in zip(
                    results, closed.out_avals, strict=True)]  # fmt: skip

            return run

        results = jax.lax.switch(index, [branch(each) for each in branches], *arrays)
        names = [each.name for each in rest if isinstance(each, Dealt)] or [""]
        return [
            Dealt(each, names[0]) if is_dealt(var.aval, self.shapes) else each
            for each, var in zip(results, eqn.outvars, strict=True)
        ]

    def as_state(self, value: Any, aval: Any, what: str) -> jax.Array:
        """Returns a value as states hold it: this device's part, if arrays of this type are dealt."""
        return self.part(value, aval) if is_dealt(aval, self.shapes) else self.whole(value, aval, what)

    def _refused(self, eqn: Any, operands: list[Any]) -> ConfigError:
        value, atom = next((v, a) for v, a in zip(operands, eqn.invars, strict=True) if isinstance(v, Dealt))
        where = source_line(eqn)
        return ConfigError(
            f"sharded: the optimizer computes {eqn.primitive.name}{list(atom.aval.shape)} of {value.name}"
            f"{f' ({where})' if where else ''}, which mixes elements that lie on several devices. {REMEDY}"
        )


REMEDY = (
    "An optimizer can be sharded if it works element by element, or with numbers made of all elements of an array, as "
    "its norm. Let others have whole arrays: optax.partition({'dealt': sharded(...), 'whole': "
    "optax.chain(all_reduce(...), ...)}, labels)."
)


def _is_number(value: Any) -> bool:
    return isinstance(value, Uniform) or value.ndim == 0


def _bind(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    results = eqn.primitive.bind(*operands, **eqn.params)
    return list(results) if eqn.primitive.multiple_results else [results]
