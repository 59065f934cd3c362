"""Counts the cost of equations of a jaxpr from shapes alone: floating-point operations, bytes read and written."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.extend import core

from jax_passing.partitioning.arrays import bytes_of


@dataclass(frozen=True)
class Cost:
    """Counts operations and bytes.

    Attributes:
      flops: additions, multiplications and comparisons of elements; a multiply-add counts as 2.
      bytes: of all inputs and outputs, as if each equation ran by itself. XLA fuses some of them.
    """

    flops: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.flops + other.flops, self.bytes + other.bytes)

    def time_s(self, flops_per_s: float, bytes_per_s: float) -> float:
        """Returns how long it takes on a device that reads and writes while it computes (Williams et al., Roofline,
        CACM 52(4), 2009)."""
        return max(self.flops / flops_per_s, self.bytes / bytes_per_s)

    def times(self, count: float) -> "Cost":
        return Cost(self.flops * count, self.bytes * count)


def _shape(atom: Any) -> tuple[int, ...]:
    return getattr(atom.aval, "shape", ())


def _size(atom: Any) -> float:
    return float(math.prod(_shape(atom)))


def _dot_flops(eqn: core.JaxprEqn) -> float:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    shape = _shape(eqn.invars[0])
    return 2.0 * _size(eqn.outvars[0]) * math.prod(shape[axis] for axis in contracted)


@functools.cache
def _products_along(
    image: int, kernel: int, out: int, stride: int, padded_before: int, image_dilation: int, kernel_dilation: int
) -> int:
    """Counts, along one axis, the pairs of an output and a kernel element that meet an element of the image.

    The others meet padding, or one of the zeros that dilation puts between the image's elements (the gradient of a
    convolution with strides does that). XLA neither computes nor counts them. At the edges of small images they are
    many: a tenth of a 3 x 3 convolution of 14 x 14 pixels.
    """
    at = stride * np.arange(out)[:, np.newaxis] + kernel_dilation * np.arange(kernel) - padded_before
    return int(np.sum((at >= 0) & (at <= (image - 1) * image_dilation) & (at % image_dilation == 0)))


def _convolution_flops(eqn: core.JaxprEqn) -> float:
    image, kernel, out = map(_shape, (*eqn.invars, *eqn.outvars))
    params = eqn.params
    image_axes, kernel_axes, out_axes = params["dimension_numbers"]  # each batch or output features, features, space
    products = 1
    for number, axes in enumerate(zip(image_axes[2:], kernel_axes[2:], out_axes[2:], strict=True)):
        products *= _products_along(
            image[axes[0]],
            kernel[axes[1]],
            out[axes[2]],
            params["window_strides"][number],
            params["padding"][number][0],
            params["lhs_dilation"][number],
            params["rhs_dilation"][number],
        )
    return 2.0 * products * out[out_axes[0]] * out[out_axes[1]] * kernel[kernel_axes[1]]  # features of one group


def _reduction_flops(eqn: core.JaxprEqn) -> float:
    """Counts n - 1 operations for n elements that become one."""
    return sum(_size(atom) for atom in eqn.invars) - sum(_size(atom) for atom in eqn.outvars)


def _window_flops(eqn: core.JaxprEqn) -> float:
    return _size(eqn.outvars[0]) * (math.prod(eqn.params["window_dimensions"]) - 1)


def _select_and_scatter_flops(eqn: core.JaxprEqn) -> float:
    """Counts a search of a window, and an addition, for each element of the gradient that max-pooling gets back."""
    return _size(eqn.invars[0]) * math.prod(eqn.params["window_dimensions"])


def _sort_flops(eqn: core.JaxprEqn) -> float:
    return _size(eqn.invars[0]) * math.ceil(math.log2(max(2, _shape(eqn.invars[0])[eqn.params["dimension"]])))


# Threefry (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011) makes two words by 20 rounds of an
# addition, a rotation (3 operations) and an xor, and 17 additions of the key; JAX makes one random word of the two.
# XLA counts a third of this, because it counts the loop over the rounds as one turn.
_PER_RANDOM_WORD = 20 * 5 + 17

# These compute nothing: they move elements, make them up, or view them in another way.
_MOVES = """
    bitcast_convert_type broadcast_in_dim concatenate copy device_put dynamic_slice dynamic_update_slice gather iota
    name optimization_barrier pad pvary random_fold_in random_seed random_split random_unwrap random_wrap reshape rev
    slice split squeeze stop_gradient transpose
""".split()  # noqa: SIM905  (a literal list would take a line for each)
_BY_NAME: dict[str, Callable[[core.JaxprEqn], float]] = {
    "dot_general": _dot_flops,
    "conv_general_dilated": _convolution_flops,
    "reduce_window": _window_flops,
    "reduce_window_sum": _window_flops,
    "reduce_window_max": _window_flops,
    "reduce_window_min": _window_flops,
    "select_and_scatter_add": _select_and_scatter_flops,
    "sort": _sort_flops,
    "random_bits": lambda eqn: _PER_RANDOM_WORD * _size(eqn.outvars[0]),
    "threefry2x32": lambda eqn: _PER_RANDOM_WORD * _size(eqn.outvars[0]),
}


def _flops(eqn: core.JaxprEqn) -> float:
    name = eqn.primitive.name
    if name in _BY_NAME:
        return _BY_NAME[name](eqn)
    if name in _MOVES:
        return 0.0
    if name.startswith(("reduce", "arg")) and name != "reduce_precision":
        return _reduction_flops(eqn)
    if name.startswith("scatter"):
        return _size(eqn.invars[2])  # the updates; XLA writes over the array that they go to
    return max((_size(atom) for atom in eqn.outvars), default=0.0)  # element by element


def cost_of_equation(eqn: core.JaxprEqn) -> Cost:
    """Counts all turns of a scan, and the dearest branch of a `cond`.

    A `while` counts as one turn, because its number of turns isn't known. (XLA counts a scan as one turn, too.)
    """
    name, params = eqn.primitive.name, eqn.params
    match name:
        case "scan":
            return cost_of_jaxpr(params["jaxpr"]).times(params["length"])
        case "while":
            return cost_of_jaxpr(params["body_jaxpr"]) + cost_of_jaxpr(params["cond_jaxpr"])
        case "cond":
            return max(
                (cost_of_jaxpr(branch) for branch in params["branches"]), key=lambda cost: (cost.flops, cost.bytes)
            )
    for called in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if called in params and not name.startswith("reduce"):  # the jaxpr of a reduction is for two elements
            return cost_of_jaxpr(params[called])
    atoms = [*eqn.invars, *eqn.outvars]
    return Cost(_flops(eqn), sum(bytes_of(atom.aval) for atom in atoms))


def cost_of_jaxpr(jaxpr: Any) -> Cost:
    """Adds up the costs of the equations of a Jaxpr or a ClosedJaxpr."""
    inner = jaxpr.jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else jaxpr
    return sum((cost_of_equation(eqn) for eqn in inner.eqns), start=Cost())
