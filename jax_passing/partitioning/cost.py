"""What an equation of a jaxpr costs, from shapes alone: floating-point operations, and bytes that it reads and writes."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jax.extend import core


@dataclass(frozen=True)
class Cost:
    """
    Attributes:
      flops: additions, multiplications and comparisons of elements; 2 for a multiplication that is added up.
      bytes: of all inputs and outputs, as if each equation ran by itself. XLA fuses some of them.
    """

    flops: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.flops + other.flops, self.bytes + other.bytes)

    def times(self, count: float) -> "Cost":
        return Cost(self.flops * count, self.bytes * count)


def bytes_of(aval: Any) -> float:
    """Of an array of this shape; a key has those of its words."""
    try:
        return float(math.prod(aval.shape) * aval.dtype.itemsize)
    except (AttributeError, TypeError):  # tokens and the like
        return 0.0


def _size(atom: Any) -> float:
    return float(math.prod(getattr(atom.aval, "shape", ())))


def _of_dot(eqn: core.JaxprEqn) -> float:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    shape = eqn.invars[0].aval.shape
    return 2.0 * _size(eqn.outvars[0]) * math.prod(shape[axis] for axis in contracted)


def _of_convolution(eqn: core.JaxprEqn) -> float:
    """Each output element adds up one product for each element of its kernel."""
    kernel = eqn.invars[1].aval.shape
    numbers = eqn.params["dimension_numbers"].rhs_spec  # output features, input features of a group, then space
    per_output = math.prod(kernel[axis] for axis in numbers[1:])
    return 2.0 * _size(eqn.outvars[0]) * per_output / math.prod(eqn.params["lhs_dilation"])


def _of_window(eqn: core.JaxprEqn) -> float:
    return _size(eqn.outvars[0]) * (math.prod(eqn.params["window_dimensions"]) - 1)


# Nothing is computed: elements are moved, made up or looked at otherwise.
_MOVES = frozenset(
    [
        "broadcast_in_dim",
        "reshape",
        "transpose",
        "squeeze",
        "expand_dims",
        "slice",
        "dynamic_slice",
        "dynamic_update_slice",
        "concatenate",
        "pad",
        "gather",
        "rev",
        "iota",
        "copy",
        "copy_p",
        "bitcast_convert_type",
        "stop_gradient",
        "random_wrap",
        "random_unwrap",
        "random_seed",
        "random_split",
        "random_fold_in",
        "split",
        "device_put",
        "name",
        "optimization_barrier",
        "pvary",
        "cut",
    ]
)
_BY_NAME: dict[str, Callable[[core.JaxprEqn], float]] = {
    "dot_general": _of_dot,
    "conv_general_dilated": _of_convolution,
    "reduce_window_sum": _of_window,
    "reduce_window_max": _of_window,
    "reduce_window_min": _of_window,
    "select_and_scatter_add": lambda eqn: _size(eqn.invars[1]) * math.prod(eqn.params["window_dimensions"]),
}


def _of_one(eqn: core.JaxprEqn) -> float:
    name = eqn.primitive.name
    if name in _BY_NAME:
        return _BY_NAME[name](eqn)
    if name in _MOVES:
        return 0.0
    if name.startswith(("reduce_", "arg", "cum", "scatter", "sort")):
        return sum(_size(atom) for atom in eqn.invars)
    return max((_size(atom) for atom in eqn.outvars), default=0.0)  # element by element


def of_equation(eqn: core.JaxprEqn) -> Cost:
    """Of a loop its turns, of a branch the dearest one. A `while` counts as one turn, as nobody knows how many it has."""
    params = eqn.params
    match eqn.primitive.name:
        case "scan":
            return of_jaxpr(params["jaxpr"]).times(params["length"])
        case "while":
            return of_jaxpr(params["body_jaxpr"]) + of_jaxpr(params["cond_jaxpr"])
        case "cond":
            return max((of_jaxpr(branch) for branch in params["branches"]), key=lambda cost: (cost.flops, cost.bytes))
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if name in params:
            return of_jaxpr(params[name])
    atoms = [*eqn.invars, *eqn.outvars]
    return Cost(_of_one(eqn), sum(bytes_of(atom.aval) for atom in atoms))


def of_jaxpr(jaxpr: Any) -> Cost:
    """Of a Jaxpr or a ClosedJaxpr."""
    inner = jaxpr.jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else jaxpr
    return sum((of_equation(eqn) for eqn in inner.eqns), start=Cost())
