"""`known_equal` tells JAX's types that arrays are equal on all devices, which they don't show of what was gathered.

`known_to_vary` reads these types.
"""

from typing import Any, TypeVar

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jax_passing._compat import named_axes
from jax_passing.collective.axes import as_axes
from jax_passing.errors import ConfigError

_T = TypeVar("_T")

passing_known_equal_p = Primitive("passing_known_equal")


def known_equal(tree: _T, axis_name: Any) -> _T:
    """Returns arrays as they are, but for their types under `shard_map(check_vma=True)`: equal along the axes.

    `all_gather` has the same result on all devices, and a type that varies, as JAX's has. Nothing checks what is said
    here, and there is no gradient: asking for one raises ConfigError.
    """
    if not named_axes.check_vma():
        return tree
    axes = as_axes(axis_name)
    return jax.tree.map(lambda leaf: passing_known_equal_p.bind(leaf, axes=axes), tree)


def known_to_vary(leaf: Any, axis_name: Any) -> bool:
    """Tells whether an array's type, under `shard_map(check_vma=True)`, says that devices along the axes differ."""
    if not (named_axes.check_vma() and isinstance(leaf, jax.Array)):
        return False
    return bool(named_axes.must_vary(as_axes(axis_name)) & named_axes.varying(jax.typeof(leaf)))


def _abstract_eval(aval: Any, *, axes: Any) -> Any:
    return named_axes.without_varying(aval, axes)


def _jvp(primals: Any, tangents: Any, *, axes: Any) -> Any:
    raise ConfigError(
        "gather has no gradient with respect to the parts: gather the parts outside of the loss, params = "
        f"gather(parts, {axes!r}), and take the gradient with respect to these params."
    )


def _batch(operands: Any, dims: Any, **params: Any) -> Any:
    return passing_known_equal_p.bind(*operands, **params), dims[0]


passing_known_equal_p.def_impl(lambda operand, **_: operand)
passing_known_equal_p.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[passing_known_equal_p] = _jvp
batching.primitive_batchers[passing_known_equal_p] = _batch
mlir.register_lowering(passing_known_equal_p, lambda ctx, operand, **_: [operand])
