"""Asks JAX arrays for their shapes, dtypes and sizes, and makes a context without a mesh."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def is_inexact(shape: Any) -> bool:
    """Tells whether elements are real or complex floating-point numbers, which are the ones that have gradients."""
    return bool(jnp.issubdtype(shape.dtype, jnp.inexact))


def shape_of(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def weak_shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """Returns the leaf's shape and dtype, and whether its type is weak, which decides what other dtypes make of it."""
    aval = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def bytes_of(aval: Any) -> float:
    """Returns the bytes of an array of this shape and dtype; a random key counts as its words."""
    try:
        return float(math.prod(aval.shape) * aval.dtype.itemsize)
    except (AttributeError, TypeError):  # tokens and the like
        return 0.0


def no_mesh() -> Any:
    """Returns a context in which no mesh is set, whatever the caller has set by `jax.set_mesh`."""
    return jax.set_mesh(jax.sharding.Mesh(np.empty((), object), ()))
