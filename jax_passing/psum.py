"""`psum` and `pmean` over the devices of an axis, on all hosts."""

import math
import os
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_passing import _compat, planner, session
from jax_passing.buckets import DEFAULT_BUCKET_BYTES, Leaf, make_buckets
from jax_passing.config import STRATEGIES, did_you_mean
from jax_passing.errors import ConfigError, NotInitializedError, UnsupportedDtypeError, UnvaryingInputError
from jax_passing.hold import hold
from jax_passing.primitive import Axes, passing_psum_invariant_p, passing_psum_p

SUPPORTED_DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "bfloat16", "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def psum(tree: Any, axis_name: Any, *, strategy: str | None = None, bucket_bytes: int = DEFAULT_BUCKET_BYTES) -> Any:
    """Sums each array of `tree` over the devices along `axis_name`, on all hosts.

    If the mesh lies inside this process, the sum also goes over the hosts, which the mesh doesn't know; if the mesh
    spans the processes (jax.distributed), the result is that of `jax.lax.psum`. The bits of the result are the same on
    every device and host, and depend on the inputs alone.

    Args:
      tree: arrays of any shape, of the dtypes in SUPPORTED_DTYPES; bool is summed as int32. A Python number is
        multiplied by the number of devices that are summed, so `psum(1, axis_name)` counts them.
      axis_name: name of an axis of shard_map, pmap or vmap, or a tuple of names.
      strategy: how to carry it out: "passing" (add up inside each host, then in the switch), "flat" (each device
        sends to the switch), "native" (`jax.lax.psum`), "auto" (what the planner finds fastest, for each bucket);
        None: as the session says. See docs/strategies.md.
      bucket_bytes: leaves of one dtype are summed together, up to so many bytes (the first ones up to 1 MiB), as soon
        as all of them are there: less overlaps more with the rest of the program, more costs less by the byte. No
        result depends on it; it must be the same on all hosts.

    Returns: a tree of the same structure, shapes and dtypes (int32 for bool).

    Raises:
      NotInitializedError: without `jax_passing.init`.
      UnsupportedDtypeError: a leaf has another dtype.
      UnvaryingInputError: under `shard_map(check_vma=True)`, a leaf is known to be equal on all devices.
      ConfigError: the strategy can't carry out this sum; the message says which one can.
      NameError: an axis is not bound here.
    """
    axes: Axes = tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
    current, devices, beyond_mesh = _extent(axes)
    world_size = current.world_size
    total = devices * (world_size if beyond_mesh else 1)
    default = current.settings.strategy
    wanted = _checked(default if strategy is None else strategy, default, world_size, beyond_mesh)
    leaves, treedef = jax.tree.flatten(tree)
    sums: list[Any] = list(leaves)
    arrays: dict[int, Any] = {}
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, (bool, int, float, complex)) and not isinstance(leaf, np.generic):
            sums[index] = leaf * total
        else:
            arrays[index] = _as_operand(leaf, axes)
    invariant = _compat.check_vma() and bool(_compat.must_vary(axes))
    primitive = passing_psum_invariant_p if invariant else passing_psum_p
    indices = list(arrays)
    sizes = [
        Leaf(arrays[i].dtype, arrays[i].nbytes, depth)
        for i, depth in zip(indices, _compat.depths([leaves[i] for i in indices]), strict=True)
    ]
    buckets = [[indices[i] for i in bucket] for bucket in make_buckets(sizes, bucket_bytes)]
    for members in buckets:
        operands = [arrays[i] for i in members]
        chosen = _choice(current, operands, devices, beyond_mesh) if wanted == "auto" else wanted
        if chosen == "native":
            results = jax.lax.psum(operands, axes)
        else:
            results = primitive.bind(
                *operands,
                axes=axes,
                world_size=world_size,
                beyond_mesh=beyond_mesh,
                device_ranks=current.device_ranks if chosen == "flat" else 0,
                name=_caller(),
            )
        for index, result in zip(members, results, strict=True):
            sums[index] = result
    _hold_behind_last(sums, buckets, arrays)
    return jax.tree.unflatten(treedef, sums)


def pmean(tree: Any, axis_name: Any, *, strategy: str | None = None, bucket_bytes: int = DEFAULT_BUCKET_BYTES) -> Any:
    """The mean over the devices along `axis_name` on all hosts: `psum` divided by their number.

    Integers and bool become floating point, as with `jax.lax.pmean`. Arguments and errors as for `psum`.
    """
    count = psum(1, axis_name)
    return jax.tree.map(lambda x: x / count, psum(tree, axis_name, strategy=strategy, bucket_bytes=bucket_bytes))


def _hold_behind_last(sums: list[Any], buckets: list[list[int]], arrays: dict[int, Any]) -> None:
    """So that all buckets' sums travel beside the backward pass: `hold` says how."""
    buckets = [[index for index in bucket if arrays[index].size] for bucket in buckets]
    buckets = [bucket for bucket in buckets if bucket]
    for bucket in buckets[:-1]:
        for index, held in zip(bucket, hold([sums[i] for i in bucket], arrays[buckets[-1][-1]]), strict=True):
            sums[index] = held


def _extent(axes: Axes) -> tuple[session.Session, int, bool]:
    """(the session, devices along the axes, whether the hosts are no part of the mesh)."""
    current = session.current()
    if current is None:
        raise NotInitializedError("no session: call jax_passing.init() before tracing jax_passing.psum")
    devices = math.prod(_compat.axis_size(axis) for axis in axes)
    return current, devices, not _mesh_spans_processes()


def _checked(strategy: str, default: str, world_size: int, beyond_mesh: bool) -> str:
    if strategy not in STRATEGIES:
        raise ConfigError(f"Unknown strategy {strategy!r}. {did_you_mean(str(strategy), list(STRATEGIES))}")
    if strategy == "native" and beyond_mesh and world_size > 1:
        raise ConfigError(
            f"strategy='native' is jax.lax.psum, which sums over the mesh alone: this one lies inside the process, and "
            f"the other {world_size - 1} hosts would be left out. Make one mesh over all of them "
            "(jax.distributed.initialize, then a mesh of jax.devices()), or use strategy='passing'."
        )
    if strategy == "flat" and default != "flat" and world_size > 1:
        raise ConfigError(
            "strategy='flat' gives each device a rank at the switch, and these join with the session: call "
            "jax_passing.init(strategy='flat') or set JAX_PASSING_STRATEGY=flat on every host. Single sums may then "
            "say strategy='passing'."
        )
    return strategy


def _choice(current: session.Session, operands: list[jax.Array], devices: int, beyond_mesh: bool) -> str:
    """What is fastest for a bucket. Depends on nothing that could differ between hosts."""
    if beyond_mesh or current.world_size == 1:
        return "passing"
    cluster = current.cluster(max(1, devices // current.world_size))
    elements = sum(operand.size for operand in operands)
    # Never flat: it sends what passing sends, once for each device.
    return planner.choose(cluster, elements, ("passing", "native"), operands[0].dtype.name)


def _mesh_spans_processes() -> bool:
    if jax.process_count() == 1:
        return False
    mesh = _compat.context_mesh()
    if mesh is not None:
        return len({device.process_index for device in mesh.devices.flat}) > 1
    # Inside shard_map the mesh is abstract. Lowering knows the devices, and raises if this guess was wrong.
    return jax.sharding.get_abstract_mesh().size > jax.local_device_count()


def _as_operand(leaf: Any, axes: Axes) -> jax.Array:
    array = jnp.asarray(leaf)
    if array.dtype.name not in SUPPORTED_DTYPES:
        raise UnsupportedDtypeError(f"psum of {array.dtype.name}; supported are {', '.join(SUPPORTED_DTYPES)}")
    if array.dtype == np.bool_:
        array = array.astype(np.int32)
    if not _compat.check_vma():
        return array
    missing = _compat.must_vary(axes) - _compat.varying(jax.typeof(array))
    if missing and isinstance(leaf, jax.core.Tracer):
        names = ", ".join(repr(axis) for axis in sorted(missing))
        raise UnvaryingInputError(
            f"psum over {axes} of {jax.typeof(array)}, which is equal on all devices along {names}. If it is the "
            "gradient of parameters that are equal on all devices, JAX has summed it over the mesh already, but not "
            f"over the hosts: before grad, cast them with params = jax.lax.pcast(params, {axes}, to='varying')"
        )
    return _compat.pvary(array, missing)


def _caller() -> str:
    """Where psum was called: "train.py:41". No path, so that hosts may install the program anywhere."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
