"""The bits of an array as int32 words, 4 bytes each on the wire, and back. Pure."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_passing.errors import UnsupportedDtypeError


def to_words(array: jax.Array) -> jax.Array:
    """int32[words], the bits of all elements, row by row: a word holds one, two or four of them, or half of one."""
    bits = _bits(array).reshape(-1)
    per_word = 4 // bits.dtype.itemsize
    if per_word > 1:
        bits = jnp.pad(bits, (0, -bits.size % per_word)).reshape(-1, per_word)
    return jax.lax.bitcast_convert_type(bits, np.int32).reshape(-1)


def from_words(words: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """What `to_words` was given, of every row: int32[*rows, words] to [*rows, *shape]."""
    rows = words.shape[:-1]
    wide, parts = _wide(dtype)
    count = int(np.prod(shape, dtype=int)) * parts
    if wide.itemsize == 8:
        words = words.reshape(*rows, count, 2)
    bits = jax.lax.bitcast_convert_type(words, wide).reshape(*rows, -1)[..., :count]
    return _from_bits(bits.reshape(*rows, *shape, *([parts] if parts > 1 else [])), dtype)


def _wide(dtype: Any) -> tuple[np.dtype, int]:
    """The unsigned integers that hold an element's bits, of 1, 2, 4 or 8 bytes, and how many of them."""
    dtype = jnp.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return np.dtype(f"uint{dtype.itemsize * 4}"), 2
    return np.dtype(f"uint{max(8, _width(dtype))}"), 1


def _width(dtype: Any) -> int:
    """Bits of an element."""
    if dtype == np.bool_:
        return 8
    if jnp.issubdtype(dtype, jnp.integer):
        return int(jnp.iinfo(dtype).bits)
    if jnp.issubdtype(dtype, jnp.floating):
        return int(jnp.finfo(dtype).bits)
    raise UnsupportedDtypeError(
        f"the bits of {dtype} can't be sent; of random keys take jax.random.key_data, and wrap_key_data afterwards"
    )


def _bits(array: jax.Array) -> jax.Array:
    """Unsigned integers, with a last dimension of two for complex numbers."""
    dtype = array.dtype
    if dtype == np.bool_:
        return array.astype(np.uint8)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        array = jnp.stack([jnp.real(array), jnp.imag(array)], axis=-1)
    width = _width(array.dtype)
    bits = jax.lax.bitcast_convert_type(array, jnp.dtype(f"uint{width}"))
    return bits.astype(np.uint8) if width < 8 else bits


def _from_bits(bits: jax.Array, dtype: Any) -> jax.Array:
    if dtype == np.bool_:
        return bits.astype(np.bool_)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        parts = jax.lax.bitcast_convert_type(bits, np.dtype(f"float{jnp.dtype(dtype).itemsize * 4}"))
        return jax.lax.complex(parts[..., 0], parts[..., 1])
    width = _width(dtype)
    narrow = bits.astype(jnp.dtype(f"uint{width}")) if width < 8 else bits
    return jax.lax.bitcast_convert_type(narrow, dtype)
