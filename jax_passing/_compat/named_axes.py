"""JAX knows the named axes around the code that is being traced, and over which of them the types of values vary."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
from jax._src import config, core

Axis = Any  # a mesh axis's or vmap axis's name
Aval = Any  # a ShapedArray

NamedAxisEffect = core.NamedAxisEffect


# Axes that are bound.


def axis_size(name: Axis) -> int:
    """Returns the size of a mesh or vmap axis.

    Raises:
      NameError: no axis of this name is bound here.
    """
    env = core.get_axis_env()
    if not env.axis_exists(name):
        bound = ", ".join(map(repr, env.axis_sizes)) or "none"
        raise NameError(
            f"unbound axis name: {name}. Bound here: {bound}. Bind it with jax.shard_map, jax.pmap or jax.vmap around "
            "this call."
        )
    return int(env.axis_size(name))


def axis_exists(name: Axis) -> bool:
    """Tells whether an axis of this name is bound here."""
    return bool(core.get_axis_env().axis_exists(name))


def manual_axes() -> frozenset[Axis]:
    """Returns the mesh axes along which the code being traced runs on each device by itself."""
    return frozenset(jax.sharding.get_abstract_mesh().manual_axes)


def vmapped(axes: Sequence[Axis]) -> bool:
    """Tells whether one of `axes` is no mesh's."""
    return not set(axes) <= manual_axes()


# Types, which say under `check_vma=True` along which mesh axes a value varies.


def check_vma() -> bool:
    """Tells whether the code being traced is under `shard_map(check_vma=True)`."""
    return bool(config._check_vma.value)


def unchecked() -> AbstractContextManager[None]:
    """Lets code be traced without such types, as under `shard_map(check_vma=False)`."""
    context: AbstractContextManager[None] = config._check_vma(False)
    return context


def must_vary(axes: Sequence[Axis]) -> frozenset[Axis]:
    """Returns those of `axes` over which the types of `check_vma=True` say whether a value varies."""
    names = manual_axes().intersection(axes)
    if config.remove_size_one_mesh_axis_from_type.value:
        names = frozenset(name for name in names if axis_size(name) != 1)
    return names


def varying(aval: Aval) -> frozenset[Axis]:
    """Returns the mesh axes over which a value of this type differs from device to device."""
    return frozenset(aval.mat.varying)


def without_varying(aval: Aval, axes: Sequence[Axis]) -> Aval:
    """Returns the same type, invariant over `axes`."""
    return aval.update(manual_axis_type=aval.mat.update(varying=aval.mat.varying.difference(axes)))


def with_varying(aval: Aval, axes: frozenset[Axis]) -> Aval:
    """Returns the same type, varying over `axes` too, in the mesh around: a closed-over value has none."""
    if not axes:
        return aval
    sharding = aval.sharding.update(mesh=jax.sharding.get_abstract_mesh())
    return aval.update(sharding=sharding, manual_axis_type=aval.mat.update(varying=aval.mat.varying.union(axes)))


def type_here(shape: Sequence[int], dtype: Any, axes: Sequence[Axis] = ()) -> Aval:
    """Returns the type of an array in the mesh around, which varies over `axes`."""
    aval = jax.core.ShapedArray(tuple(shape), dtype)
    sharding = aval.sharding.update(mesh=jax.sharding.get_abstract_mesh())
    return aval.update(sharding=sharding, manual_axis_type=aval.mat.update(varying=frozenset(axes)))


def pvary(x: Any, axes: frozenset[Axis]) -> Any:
    """Casts from invariant to varying over `axes`."""
    return core.pvary(x, tuple(sorted(axes))) if axes else x


def check_types(avals: Sequence[Aval], axes: Sequence[Axis], name: str) -> None:
    """Raises as `lax.psum` does on operands of another mesh, or that are unreduced over `axes`."""
    core.check_avals_context_mesh(avals, name)
    core.check_unreduced_args(avals, axes, name)
