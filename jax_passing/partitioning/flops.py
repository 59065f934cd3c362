"""Counts the floating-point operations of single equations, by formulas of the literature.

*LAWN 41* is LAPACK Working Note 41 (Blackford and Dongarra, Installation Guide for LAPACK, 1999), table of operation
counts; *GVL* is Golub and Van Loan, Matrix Computations, 4th edition, 2013. XLA's own `cost_analysis` counts none of
the decompositions, because they are calls of other libraries, and all products of a ragged one, also those with zeros.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend import core


def shape_of_atom(atom: Any) -> tuple[int, ...]:
    return getattr(atom.aval, "shape", ())


def size(atom: Any) -> float:
    return float(math.prod(shape_of_atom(atom)))


def _is_complex(atom: Any) -> bool:
    return bool(jnp.issubdtype(getattr(atom.aval, "dtype", np.float32), jnp.complexfloating))


def _products(eqn: core.JaxprEqn, count: float) -> float:
    """Counts multiply-adds: 2 operations, and 8 of complex numbers."""
    return (8.0 if _is_complex(eqn.outvars[0]) else 2.0) * count


def _dot_flops(eqn: core.JaxprEqn) -> float:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    shape = shape_of_atom(eqn.invars[0])
    return _products(eqn, size(eqn.outvars[0]) * math.prod(shape[axis] for axis in contracted))


def _ragged_dot_flops(eqn: core.JaxprEqn) -> float:
    """Counts each element of the left side with the right side's columns of the one group that it belongs to."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (_, contracted), (_, batch) = numbers.dot_dimension_numbers
    other = {*contracted, *batch, *numbers.rhs_group_dimensions}
    right = shape_of_atom(eqn.invars[1])
    columns = math.prod(length for axis, length in enumerate(right) if axis not in other)
    return _products(eqn, size(eqn.invars[0]) * columns)


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
    image, kernel, out = map(shape_of_atom, (*eqn.invars, *eqn.outvars))
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
    return _products(eqn, products * out[out_axes[0]] * out[out_axes[1]] * kernel[kernel_axes[1]])  # of one group


def _reduction_flops(eqn: core.JaxprEqn) -> float:
    """Counts n - 1 operations for n elements that become one."""
    return sum(map(size, eqn.invars)) - sum(map(size, eqn.outvars))


def _window_flops(eqn: core.JaxprEqn) -> float:
    return size(eqn.outvars[0]) * (math.prod(eqn.params["window_dimensions"]) - 1)


def _select_and_scatter_flops(eqn: core.JaxprEqn) -> float:
    """Counts a search of a window, and an addition, for each element of the gradient that max-pooling gets back."""
    return size(eqn.invars[0]) * math.prod(eqn.params["window_dimensions"])


def _sort_flops(eqn: core.JaxprEqn) -> float:
    return size(eqn.invars[0]) * _log2(shape_of_atom(eqn.invars[0])[eqn.params["dimension"]])


def _log2(count: int) -> int:
    return math.ceil(math.log2(max(2, count)))


def _fft_flops(eqn: core.JaxprEqn) -> float:
    """Counts 5 N log2 N for N complex numbers: N/2 log2 N butterflies of ten operations. Real ones take half."""
    count = math.prod(eqn.params["fft_lengths"])
    kind = eqn.params["fft_type"].name
    numbers = size(eqn.outvars[0] if kind == "IRFFT" else eqn.invars[0])
    return (2.5 if "RFFT" in kind else 5.0) * numbers * math.log2(max(count, 1))


def _of_matrix(formula: Callable[[core.JaxprEqn, int, int], float]) -> Callable[[core.JaxprEqn], float]:
    """Counts `formula(eqn, m, n)` for each matrix, m x n, of the first input; four times that for complex ones."""

    def flops(eqn: core.JaxprEqn) -> float:
        *batch, m, n = shape_of_atom(eqn.invars[0])
        return math.prod(batch) * formula(eqn, m, n) * (4.0 if _is_complex(eqn.invars[0]) else 1.0)

    return flops


def _lu(eqn: core.JaxprEqn, m: int, n: int) -> float:
    m, n = max(m, n), min(m, n)
    return m * n**2 - n**3 / 3 - n**2 / 2 - n / 6


def _qr(eqn: core.JaxprEqn, m: int, n: int) -> float:
    high, low = max(m, n), min(m, n)
    return 2 * high * low**2 - 2 * low**3 / 3


def _q_of(m: int, n: int, reflectors: int) -> float:
    return 4 * m * n * reflectors - 2 * (m + n) * reflectors**2 + 4 * reflectors**3 / 3


def _q_and_r(eqn: core.JaxprEqn, m: int, n: int) -> float:
    return _qr(eqn, m, n) + _q_of(m, shape_of_atom(eqn.outvars[0])[-1], min(m, n))


def _svd(eqn: core.JaxprEqn, m: int, n: int) -> float:
    m, n = max(m, n), min(m, n)
    if not eqn.params["compute_uv"]:
        return min(4 * m * n**2 - 4 * n**3 / 3, 2 * m * n**2 + 2 * n**3)
    if eqn.params["full_matrices"]:
        return min(4 * m**2 * n + 8 * m * n**2 + 9 * n**3, 4 * m**2 * n + 22 * n**3)
    return min(14 * m * n**2 + 8 * n**3, 6 * m * n**2 + 20 * n**3)


def _eig(eqn: core.JaxprEqn, m: int, n: int) -> float:
    return (25 if len(eqn.outvars) > 1 else 10) * n**3


def _triangular_solve(eqn: core.JaxprEqn, m: int, n: int) -> float:
    rows, columns = shape_of_atom(eqn.invars[1])[-2:]
    return n**2 * (columns if eqn.params["left_side"] else rows)


def _tridiagonal_solve(eqn: core.JaxprEqn) -> float:
    return 3 * size(eqn.invars[0]) + 5 * size(eqn.invars[3])


# Threefry (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011) makes two words by 20 rounds of an
# addition, a rotation (3 operations) and an xor, and 17 additions of the key; JAX makes one random word of the two.
# XLA counts a third of this, because it counts the loop over the rounds as one turn.
_PER_RANDOM_WORD = 20 * 5 + 17

# These compute nothing: they move elements, make them up, or view them in another way. The last line has what kernels
# of Pallas move.
_MOVES = """
    bitcast_convert_type broadcast_in_dim concatenate copy device_put dynamic_slice dynamic_update_slice gather iota
    name optimization_barrier pad pvary random_fold_in random_seed random_split random_unwrap random_wrap reshape rev
    slice split squeeze stop_gradient transpose
    get swap masked_load masked_swap program_id num_programs multiple_of dma_start dma_wait semaphore_signal
""".split()  # noqa: SIM905  (a literal list would take a line for each)
_BY_NAME: dict[str, Callable[[core.JaxprEqn], float]] = {
    "dot_general": _dot_flops,
    "ragged_dot_general": _ragged_dot_flops,
    "conv_general_dilated": _convolution_flops,
    "reduce_window": _window_flops,
    "reduce_window_sum": _window_flops,
    "reduce_window_max": _window_flops,
    "reduce_window_min": _window_flops,
    "select_and_scatter_add": _select_and_scatter_flops,
    "select_and_gather_add": _window_flops,
    "sort": _sort_flops,  # comparisons of a merge sort (Knuth, The Art of Computer Programming, volume 3, 5.2.4)
    "top_k": lambda eqn: size(eqn.invars[0]) * _log2(eqn.params["k"]),  # of a heap of k elements
    "approx_top_k": lambda eqn: size(eqn.invars[0]),
    "fft": _fft_flops,  # what FFTW's benchmarks count (fftw.org/speed/method.html); Cooley and Tukey, 1965
    "cholesky": _of_matrix(lambda eqn, m, n: n**3 / 3 + n**2 / 2 + n / 6),  # LAWN 41, POTRF
    "lu": _of_matrix(_lu),  # LAWN 41, GETRF, with divisions by pivots
    "geqrf": _of_matrix(_qr),  # LAWN 41, GEQRF, cubic terms
    "householder_product": _of_matrix(  # LAWN 41, ORGQR, cubic terms
        lambda eqn, m, n: _q_of(m, n, shape_of_atom(eqn.invars[1])[-1])
    ),
    "qr": _of_matrix(_q_and_r),  # the two before
    "svd": _of_matrix(_svd),  # GVL 8.6.3: the cheaper one of Golub-Reinsch's and the R-SVD
    "eigh": _of_matrix(lambda eqn, m, n: 9 * n**3),  # GVL 8.3.3; JAX always computes the vectors
    "eig": _of_matrix(_eig),  # GVL 7.5.6
    "schur": _of_matrix(_eig),  # the same
    "hessenberg": _of_matrix(lambda eqn, m, n: 10 * n**3 / 3),  # LAWN 41, GEHRD
    "tridiagonal": _of_matrix(lambda eqn, m, n: 4 * n**3 / 3),  # LAWN 41, SYTRD
    "triangular_solve": _of_matrix(_triangular_solve),  # LAWN 41, TRSM
    "tridiagonal_solve": _tridiagonal_solve,  # GVL 4.3.6: 3 a row, and 5 a row and right-hand side
    "random_bits": lambda eqn: _PER_RANDOM_WORD * size(eqn.outvars[0]),
    "threefry2x32": lambda eqn: _PER_RANDOM_WORD * size(eqn.outvars[0]),
}


def flops_of(eqn: core.JaxprEqn) -> float:
    """Counts additions, multiplications and comparisons of an equation that isn't made of others."""
    name = eqn.primitive.name
    if name in _BY_NAME:
        return _BY_NAME[name](eqn)
    if name in _MOVES:
        return 0.0
    if name.startswith(("reduce", "arg")) and name != "reduce_precision":
        return _reduction_flops(eqn)
    if name.startswith("scatter"):
        return size(eqn.invars[2])  # the updates; XLA writes over the array that they go to
    if name == "addupdate":  # of a kernel: reference, value, indices
        return size(eqn.invars[1])
    # Element by element. A product of complex numbers has six operations, a sum two.
    of_complex = any(map(_is_complex, eqn.outvars))
    return max(map(size, eqn.outvars), default=0.0) * ((6.0 if name == "mul" else 2.0) if of_complex else 1.0)
