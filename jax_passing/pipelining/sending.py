"""Sends arrays from the devices of one stage to those of another, also to other processes."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

_ENDS = "passing_ends"  # an axis of two: where arrays are, and where they go


def mesh_of(sharding: NamedSharding) -> Mesh:
    assert isinstance(sharding.mesh, Mesh), "arrays are on devices"
    return sharding.mesh


def is_here(sharding: NamedSharding) -> bool:
    """Tells whether this process has any of the sharding's devices."""
    return bool(sharding.addressable_devices)


def elsewhere(shape: Any, sharding: Sharding) -> jax.Array:
    """Returns an array without data of this process, with this shape, dtype and sharding."""
    return jax.make_array_from_single_device_arrays(shape.shape, sharding, [], dtype=shape.dtype)


def put(array: Any, sharding: Any) -> jax.Array:
    """Puts an array on the devices of a sharding. If several processes have these, each one gives the same array."""
    is_global = isinstance(array, jax.Array) and not array.is_fully_addressable
    if is_global or sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    if isinstance(array, jax.Array) and (kind := _key_kind(array)):
        return _wrapped(sharding, kind)(put(jax.random.key_data(array), sharding))
    own = np.asarray(array, jax.typeof(array).dtype)  # JAX 0.12.0 can't jax.device_put a local jax.Array here
    return jax.make_array_from_callback(own.shape, sharding, lambda index: own[index], dtype=own.dtype)


def send(arrays: Sequence[jax.Array], source: Mesh, targets: Sequence[NamedSharding]) -> list[jax.Array]:
    """Copies arrays to the targets' devices, which are as many as the source's and in the same order.

    Inside of a process the devices go on computing meanwhile. Otherwise all processes that have any of the devices call
    this, in the same order as everything else that they do together. Other processes may call it, too, and get arrays
    of which they have no part.
    """
    if not arrays:
        return []
    is_inside = NamedSharding(source, PartitionSpec()).is_fully_addressable and targets[0].is_fully_addressable
    if is_inside or source == targets[0].mesh:
        return _placed(arrays, targets)
    here = [NamedSharding(source, target.spec) for target in targets]
    ways = [_Way(source, mesh_of(target), target.spec) for target in targets]
    if is_here(here[0]):
        leaving = _lifted(tuple(here))(_placed(arrays, here))
    elif is_here(targets[0]):
        leaving = [elsewhere(_lifted_shape(array), way.near) for array, way in zip(arrays, ways, strict=True)]
    else:
        return [elsewhere(array, target) for array, target in zip(arrays, targets, strict=True)]
    whole = [way.with_blanks(array) for way, array in zip(ways, leaving, strict=True)]
    both = _permutation(tuple(way.both for way in ways))(whole)
    if not is_here(targets[0]):
        return [elsewhere(array, target) for array, target in zip(arrays, targets, strict=True)]
    arrived = [way.far_end(array) for way, array in zip(ways, both, strict=True)]
    return _lowered(tuple(targets), tuple(map(_key_kind, arrays)))(arrived)


def _placed(arrays: Sequence[jax.Array], targets: Sequence[NamedSharding]) -> list[jax.Array]:
    """Moves arrays to their shardings. jax.device_put does so, too, but refuses random keys that lie so already, if
    their sharding is written in another way (P(None) for P()) and goes over several processes."""
    pairs = list(zip(arrays, targets, strict=True))
    moving = [pair for pair in pairs if not pair[0].sharding.is_equivalent_to(pair[1], pair[0].ndim)]
    moved = iter(jax.device_put([array for array, _ in moving], [target for _, target in moving]))
    return [array if array.sharding.is_equivalent_to(target, array.ndim) else next(moved) for array, target in pairs]


class _Way:
    """Sends an array with some PartitionSpec from one mesh to another.

    This is a permutation over both meshes, a collective like any other: `jax.device_put` between processes needs
    settings that are off by default, and hangs now and then with jaxlib 0.10.
    """

    def __init__(self, source: Mesh, target: Mesh, spec: PartitionSpec):
        ends = Mesh(np.stack([source.devices, target.devices]), (_ENDS, *source.axis_names))
        self.both = NamedSharding(ends, PartitionSpec(_ENDS, *spec))
        self.near = NamedSharding(source, PartitionSpec(None, *spec))
        self._far = NamedSharding(target, PartitionSpec(None, *spec))

    def with_blanks(self, array: jax.Array) -> jax.Array:
        """Puts the array, which has a leading dimension of 1, together with zeros at the far end."""
        blanks = jnp.zeros(array.shape, array.dtype, device=self._far)
        return _assembled((2, *array.shape[1:]), self.both, [array, blanks])

    def far_end(self, both: jax.Array) -> jax.Array:
        """Returns the part at the far end, with a leading dimension of 1."""
        return _assembled((1, *both.shape[1:]), self._far, [both])


def _assembled(shape: tuple[int, ...], sharding: NamedSharding, arrays: Sequence[jax.Array]) -> jax.Array:
    """Makes an array from the pieces of these arrays that are on the sharding's devices."""
    pieces = {piece.device: piece.data for array in arrays for piece in array.addressable_shards}
    own = [pieces[device] for device in sharding.addressable_devices]
    return jax.make_array_from_single_device_arrays(shape, sharding, own, dtype=arrays[0].dtype)


@functools.cache
def _lifted(here: tuple[NamedSharding, ...]) -> Any:
    """Returns a program that gives arrays a leading dimension, and replaces random keys by their words."""
    lifted = [NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec)) for sharding in here]
    return jax.jit(lambda arrays: [_words(array)[np.newaxis] for array in arrays], out_shardings=lifted)


@functools.cache
def _lowered(targets: tuple[NamedSharding, ...], key_kinds: tuple[Any, ...]) -> Any:
    """Returns a program that undoes what that of `_lifted` does."""

    def lower(arrays: Sequence[Any]) -> list[Any]:
        pairs = zip(arrays, key_kinds, strict=True)
        return [jax.random.wrap_key_data(array[0], impl=kind) if kind else array[0] for array, kind in pairs]

    return jax.jit(lower, out_shardings=list(targets))


@functools.cache
def _wrapped(sharding: NamedSharding, key_kind: Any) -> Any:
    """Returns a program that makes random keys from their words."""
    return jax.jit(lambda words: jax.random.wrap_key_data(words, impl=key_kind), out_shardings=sharding)


@functools.cache
def _permutation(shardings: tuple[NamedSharding, ...]) -> Any:
    specs = [sharding.spec for sharding in shardings]
    return jax.jit(
        jax.shard_map(
            lambda arrays: lax.ppermute(arrays, _ENDS, [(0, 1)]),
            mesh=shardings[0].mesh,
            in_specs=(specs,),
            out_specs=specs,
            check_vma=False,
        )
    )


def _lifted_shape(array: Any) -> Any:
    return jax.eval_shape(lambda: _words(jnp.zeros(array.shape, array.dtype))[np.newaxis])


def _key_kind(array: Any) -> Any:
    """Returns the generator that random keys are for; None for other arrays."""
    return jax.random.key_impl(array) if jnp.issubdtype(array.dtype, jax.dtypes.prng_key) else None


def _words(array: Any) -> Any:
    return jax.random.key_data(array) if _key_kind(array) else array
