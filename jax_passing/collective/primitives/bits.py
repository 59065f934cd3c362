"""Integers in place of any elements, and back. Pure.

Words hold the bits of an array, to be sent as they are. Keys are in the order of the elements that they stand for, to
find the largest or smallest element: the greatest int32 decides.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_passing.errors import UsageError


def to_words(array: jax.Array) -> jax.Array:
    """Returns int32[words], the bits of all elements by rows: a word holds one, two or four of them, or half of one."""
    bits = _bits(array).reshape(-1)
    per_word = 4 // bits.dtype.itemsize
    if per_word > 1:
        bits = jnp.pad(bits, (0, -bits.size % per_word)).reshape(-1, per_word)
    return jax.lax.bitcast_convert_type(bits, np.int32).reshape(-1)


def from_words(words: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Returns what `to_words` was given, for every row: int32[*rows, words] to [*rows, *shape]."""
    rows = words.shape[:-1]
    wide, parts = _wide(dtype)
    count = int(np.prod(shape, dtype=int)) * parts
    if wide.itemsize == 8:
        words = words.reshape(*rows, count, 2)
    bits = jax.lax.bitcast_convert_type(words, wide).reshape(*rows, -1)[..., :count]
    return _from_bits(bits.reshape(*rows, *shape, *([parts] if parts > 1 else [])), dtype)


def _wide(dtype: Any) -> tuple[np.dtype, int]:
    """Returns the type of unsigned integers that hold an element's bits, of 1, 2, 4 or 8 bytes, and how many do."""
    dtype = jnp.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return np.dtype(f"uint{dtype.itemsize * 4}"), 2
    return np.dtype(f"uint{max(8, element_bits(dtype))}"), 1


def element_bits(dtype: np.dtype) -> int:
    """Returns how many bits an element has."""
    if dtype == np.bool_ or jnp.issubdtype(dtype, jnp.complexfloating):
        return 8 * int(dtype.itemsize)
    if jnp.issubdtype(dtype, jnp.integer):
        return int(jnp.iinfo(dtype).bits)
    if jnp.issubdtype(dtype, jnp.floating):
        return int(jnp.finfo(dtype).bits)
    if dtype == jax.dtypes.float0:
        raise UsageError("float0 has no bits that could be sent, so leave it out")
    raise UsageError(
        f"the bits of {dtype} can't be sent; of random keys take jax.random.key_data, and wrap_key_data afterwards"
    )


def _bits(array: jax.Array) -> jax.Array:
    """Returns unsigned integers, with a last dimension of two for complex numbers."""
    dtype = array.dtype
    if dtype == np.bool_:
        return array.astype(np.uint8)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        array = jnp.stack([jnp.real(array), jnp.imag(array)], axis=-1)
    width = element_bits(array.dtype)
    bits = jax.lax.bitcast_convert_type(array, jnp.dtype(f"uint{width}"))
    return bits.astype(np.uint8) if width < 8 else bits


def _from_bits(bits: jax.Array, dtype: Any) -> jax.Array:
    if dtype == np.bool_:
        return bits.astype(np.bool_)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        parts = jax.lax.bitcast_convert_type(bits, np.dtype(f"float{jnp.dtype(dtype).itemsize * 4}"))
        return jax.lax.complex(parts[..., 0], parts[..., 1])
    width = element_bits(dtype)
    narrow = bits.astype(jnp.dtype(f"uint{width}")) if width < 8 else bits
    return jax.lax.bitcast_convert_type(narrow, dtype)


def to_key(array: jax.Array, largest: bool) -> jax.Array:
    """Returns keys, int32 or int64 (of 64-bit dtypes), of the same shape. The greatest key is that of the largest
    element, or of the smallest one if not `largest`. NaN is beyond all numbers, either way; -0.0 is less than +0.0.
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
        raise UsageError(
            f"pmax and pmin of {dtype}: cast it first. Supported are bool, integers and real floating point."
        )
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
    """Splits int64 into int32 (upper, lower). Where the upper are equal, the lower are in the order of the int64."""
    parts = jax.lax.bitcast_convert_type(key, np.int32)
    return parts[..., 1], parts[..., 0] ^ np.iinfo(np.int32).min


def whole(upper: jax.Array, lower: jax.Array) -> jax.Array:
    """Puts together what `halves` took apart."""
    return jax.lax.bitcast_convert_type(jnp.stack([lower ^ np.iinfo(np.int32).min, upper], axis=-1), np.int64)
