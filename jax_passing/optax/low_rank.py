"""Matrices of gradients, and their factors of low rank."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

_MAY_BE_MATRICES = ("float32", "float16", "bfloat16")


def matrix_shape(leaf: Any, rank: int, min_compression_rate: float) -> tuple[int, int] | None:
    """Returns the shape (n, m) of the matrix that a leaf is factored as; None if factors don't pay.

    Its first dimensions are the rows and the others the columns, split where n + m is smallest, as a matrix near a
    square has the smallest factors. So a kernel of a convolution, (3, 3, 64, 128), is (576, 128), outputs against all
    that they are computed from, as in the paper; those of attention, (768, 12, 64) and (12, 64, 768), are (768, 768).
    (By the first dimension alone, which suits PyTorch's order, they would be (3, 24576) and (12, 49152).) The elements
    keep their order, so this costs nothing.
    """
    shape: Sequence[int] = jnp.shape(leaf)
    if jnp.result_type(leaf).name not in _MAY_BE_MATRICES or len(shape) < 2:
        return None
    splits = [(math.prod(shape[:at]), math.prod(shape[at:])) for at in range(1, len(shape))]
    n, m = min(splits, key=sum)
    pays = (n + m) * rank * min_compression_rate < n * m and rank <= min(n, m)
    return (n, m) if pays else None


def first_factor(key: jax.Array, columns: int, rank: int) -> jax.Array:
    """Returns float32[rank, columns], drawn: the same on all hosts that have the same key."""
    return jax.random.normal(key, (rank, columns), jnp.float32)


def orthonormal(rows: jax.Array) -> jax.Array:
    """Returns an orthonormal basis of the space of the rows, as rows; of a larger one if they are dependent.

    By Householder's reflections, which give orthonormal rows even where these are dependent or zero. (Gram and Schmidt
    would divide by the norm of rounding errors.) Each row has the sign with which it stands in its own.
    """
    basis, coefficients = jnp.linalg.qr(rows.T)
    return jnp.where(jnp.diagonal(coefficients)[:, None] < 0, -basis.T, basis.T)


_FORMER = 2.0**-12  # far above float32's rounding, far below what matters of a direction


def next_factor(found: jax.Array, former: jax.Array) -> jax.Array:
    """Returns Q of the next step, R of this one with a small part of the orthonormal Q that it came from.

    Where R lacks directions, as its gradients were zero or of lower rank, those of the former Q stay: orthonormal()
    would make up others, the first columns, and where the gradients stay zero there, none would ever be found again.
    With B for the former Q and P = orthonormal(the mean of B Mᵀ) = orthonormal(L P), where L is triangular and has no
    negative diagonal, R Bᵀ = P M Bᵀ = Lᵀ. So (R / scale + small B) Bᵀ is triangular, with a diagonal of at least
    `small`: its rows are independent, whatever R is.
    """
    scale = jnp.max(jnp.abs(found), initial=0)
    return jnp.where(scale > 0, found / scale, 0) + _FORMER * former


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """Multiplies with all bits of float32 on GPUs and TPUs, too, as the residual must match the applied update."""
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
