"""Integers that are in order as the elements they stand for, and back: the greatest int32 decides. Pure."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_passing.errors import UnsupportedDtypeError


def to_key(array: jax.Array, largest: bool) -> jax.Array:
    """int32 or int64 (of 64-bit dtypes), of the same shape: the greatest key is that of the largest element.

    Of the smallest one if not `largest`. NaN is beyond all numbers, either way; -0.0 is less than +0.0.
    """
    dtype = array.dtype
    if jnp.issubdtype(dtype, jnp.floating):
        wide = array if dtype.itemsize >= 4 else array.astype(np.float32)  # exact, and in order
        signed = np.dtype(f"int{wide.dtype.itemsize * 8}")
        bits = jax.lax.bitcast_convert_type(wide, signed)
        # Sign and magnitude; the magnitude's order is that of its bits.
        key = jnp.where(bits < 0, bits ^ np.iinfo(signed).max, bits)
        return jnp.where(jnp.isnan(wide), np.iinfo(signed).max, key if largest else ~key)
    if dtype == np.bool_ or (jnp.issubdtype(dtype, jnp.integer) and dtype.itemsize < 4):
        key = array.astype(np.int32)
    elif jnp.issubdtype(dtype, jnp.unsignedinteger):
        signed = np.dtype(f"int{dtype.itemsize * 8}")
        key = jax.lax.bitcast_convert_type(array, signed) ^ np.iinfo(signed).min
    elif jnp.issubdtype(dtype, jnp.integer):
        key = array
    else:
        raise UnsupportedDtypeError(f"pmax and pmin of {dtype}: supported are bool, integers and real floating point")
    return key if largest else ~key


def from_key(key: jax.Array, dtype: Any, largest: bool) -> jax.Array:
    if jnp.issubdtype(dtype, jnp.floating):
        greatest = np.iinfo(key.dtype).max
        wide = np.dtype(f"float{key.dtype.itemsize * 8}")
        order = key if largest else ~key
        number = jax.lax.bitcast_convert_type(jnp.where(order < 0, order ^ greatest, order), wide)
        return jnp.where(key == greatest, np.array(np.nan, wide), number).astype(dtype)
    key = key if largest else ~key
    if jnp.issubdtype(dtype, jnp.unsignedinteger) and key.dtype.itemsize == jnp.dtype(dtype).itemsize:
        return jax.lax.bitcast_convert_type(key ^ np.iinfo(key.dtype).min, dtype)
    return key.astype(dtype)


def halves(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """int64 to two int32, the upper one and the lower one, whose order is that of the int64 if the first are equal."""
    parts = jax.lax.bitcast_convert_type(key, np.int32)
    return parts[..., 1], parts[..., 0] ^ np.iinfo(np.int32).min


def whole(upper: jax.Array, lower: jax.Array) -> jax.Array:
    """What `halves` took apart."""
    return jax.lax.bitcast_convert_type(jnp.stack([lower ^ np.iinfo(np.int32).min, upper], axis=-1), np.int64)
