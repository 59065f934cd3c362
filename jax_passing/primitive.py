"""The primitives `passing_psum` and `passing_psum_invariant`, and their rules.

Both take the leaves of one bucket (all of one dtype) and return their sums. The second is the form of
`shard_map(check_vma=True)`, whose result is invariant over the axes; they differ in their types and transposes, like
JAX's own `psum` and `psum_invariant`.

Parameters: `axes` (names), `world_size` (hosts of the session), `beyond_mesh` (whether the hosts are no part of the
mesh, so that the sum goes over them too), `device_ranks` (devices of each host that are ranks of their own at the
switch; 0: each host is one), `name` (where psum was called: "train.py:41").
"""

import functools
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jax_passing import _compat, _native
from jax_passing.errors import ConfigError
from jax_passing.placement import Placement, place

Axes = tuple[_compat.Axis, ...]

passing_psum_p = Primitive("passing_psum")
passing_psum_invariant_p = Primitive("passing_psum_invariant")


# Evaluation without jit: a program of its own for each combination of parameters.


@functools.lru_cache(maxsize=1024)
def _jitted(primitive: Primitive, **params: Any) -> Any:
    def passing_psum(*leaves: Any) -> Any:
        return primitive.bind(*leaves, **params)

    return jax.jit(passing_psum)


def _evaluate(primitive: Primitive, *leaves: Any, **params: Any) -> Any:
    return _jitted(primitive, **params)(*leaves)


# Types.


def _abstract_eval(primitive: Primitive, *avals: Any, axes: Axes, **_: Any) -> tuple[list[Any], set[Any]]:
    for axis in axes:
        _compat.axis_size(axis)
    _compat.check_types(avals, axes, primitive.name)
    if primitive is passing_psum_invariant_p:
        avals = tuple(_compat.without_varying(aval, axes) for aval in avals)
    return [aval.update(weak_type=False) for aval in avals], {_compat.NamedAxisEffect(axis) for axis in axes}


# Derivatives: the map is linear. Only leaves whose tangent isn't zero travel.


def _jvp(primitive: Primitive, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    sums = primitive.bind(*primals, **params)
    moving = [i for i, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]
    sum_tangents = [ad.Zero(jax.typeof(s).to_tangent_aval()) for s in sums]
    if moving:
        for i, tangent in zip(moving, primitive.bind(*(tangents[i] for i in moving), **params), strict=True):
            sum_tangents[i] = tangent
    return sums, sum_tangents


def _transpose(primitive: Primitive, cotangents: Sequence[Any], *leaves: Any, axes: Axes, **params: Any) -> list[Any]:
    moving = [i for i, cotangent in enumerate(cotangents) if type(cotangent) is not ad.Zero]
    result: list[Any] = [ad.Zero(leaf.aval.to_ct_aval()) if ad.is_undefined_primal(leaf) else None for leaf in leaves]
    given = [cotangents[i] for i in moving]
    if primitive is passing_psum_invariant_p:
        # The sum is one value that every device and host shares, so its cotangent is each one's own.
        given = [_compat.pvary(cotangent, _compat.must_vary(axes)) for cotangent in given]
    elif given:
        # Each device has a sum of its own, equal by chance: their cotangents add up, as those of lax.psum do.
        given = primitive.bind(*given, axes=axes, **params)
    for i, cotangent in zip(moving, given, strict=True):
        result[i] = cotangent if ad.is_undefined_primal(leaves[i]) else None
    return result


# vmap.


def _batch(
    primitive: Primitive, axis_data: Any, leaves: Sequence[Any], dims: Sequence[Any], *, axes: Axes, **params: Any
) -> tuple[Sequence[Any], Sequence[Any]]:
    if axis_data.name not in axes:
        return primitive.bind(*leaves, axes=axes, **params), dims
    leaves = [
        leaf * np.array(axis_data.size, leaf.dtype) if dim is None else jnp.sum(leaf, axis=dim, dtype=leaf.dtype)
        for leaf, dim in zip(leaves, dims, strict=True)
    ]
    rest = tuple(axis for axis in axes if axis != axis_data.name)
    return primitive.bind(*leaves, axes=rest, **params), [None] * len(leaves)


# CPU: one asynchronous FFI call per device.


@functools.cache
def register_ffi() -> None:
    """Tells XLA of the handlers; once is enough."""
    # XLA takes a state type only once its backend exists.
    jax.local_devices(backend="cpu")
    name, type_id, type_info = _native.ffi_state_type()
    jax.ffi.register_ffi_type(name, {"type_id": type_id, "type_info": type_info}, platform="cpu")
    for target, handlers in _native.ffi_targets().items():
        jax.ffi.register_ffi_target(target, handlers, platform="cpu")
    jax.monitoring.register_event_duration_secs_listener(_on_event)


def _on_event(event: str, duration_secs: float, **_: str | int) -> None:
    # Comes on the thread that compiled. The handlers tell executables apart by it, and do without for most programs.
    if event == "/jax/core/compile/backend_compile_duration":
        _native.end_compilation()


def _placement(mesh: _compat.LoweringMesh, axes: Axes, world_size: int, beyond_mesh: bool) -> Placement:
    for axis in axes:
        if axis not in mesh.manual_axes:
            raise NotImplementedError(f"psum over axis {axis!r}, which is no manual axis of the mesh")
    if mesh.devices is not None:
        processes = np.array([device.process_index for device in mesh.devices])
    elif jax.process_count() == 1 or mesh.device_count == 1:
        processes = np.full(mesh.device_count, jax.process_index())
    else:
        raise ConfigError("psum can't tell which processes' devices the program runs on: say so with jax.set_mesh")
    placement = place(processes, mesh.axis_sizes, mesh.manual_axes, axes, jax.process_index())
    if beyond_mesh != (placement.process_count == 1):
        raise ConfigError(
            "psum was traced for a mesh inside one process, but runs on one that spans several, or the reverse: "
            "say which mesh is meant with jax.set_mesh"
        )
    if not beyond_mesh and not placement.local and placement.process_count != world_size:
        raise ConfigError(f"the mesh spans {placement.process_count} processes, but the session has {world_size} ranks")
    return placement


def _check_flat(placement: Placement, axes: Axes, device_ranks: int) -> None:
    if placement.local_member_count != device_ranks:
        raise ConfigError(
            f"strategy='flat' gives each of this host's {device_ranks} devices a rank at the switch, which adds up all "
            f"of them; this psum over {axes} has a part on {placement.local_member_count} of them in each group. "
            "Use strategy='passing' for it."
        )


def _site_name(name: str, avals: Sequence[Any], axes: Axes, flat: bool) -> str:
    # Made of what can't differ between hosts: JAX's own text of a type lists sets in any order.
    leaves = [f"{aval.dtype.name}[{','.join(map(str, aval.shape))}]" for aval in avals[:4]]
    if len(avals) > 4:
        leaves.append(f"{len(avals) - 4} more")
    kind = "flat psum" if flat else "psum"
    return f"{name} {kind} of {', '.join(leaves)} over {', '.join(map(str, axes)) or 'the hosts'}"


def _lower(
    ctx: mlir.LoweringRuleContext,
    *leaves: Any,
    axes: Axes,
    world_size: int,
    beyond_mesh: bool,
    device_ranks: int,
    name: str,
) -> Sequence[Any]:
    mesh = _compat.lowering_mesh(ctx)
    placement = _placement(mesh, axes, world_size, beyond_mesh)
    local = placement.local and not beyond_mesh
    avals_in: Sequence[Any] = ctx.avals_in
    carried = [i for i, aval in enumerate(avals_in) if aval.size > 0]
    if not carried or (local and placement.member_count == 1):
        return leaves
    flat = device_ranks > 0 and not local
    if flat:
        _check_flat(placement, axes, device_ranks)
    register_ffi()

    def group_and_member() -> jax.Array:
        others = tuple(axis for axis in mesh.axis_sizes if axis in mesh.manual_axes and axis not in axes)
        return jnp.stack([jax.lax.axis_index(names) if names else jnp.int32(0) for names in (others, axes)])

    int32_2 = jax.core.ShapedArray((2,), np.dtype(np.int32))
    where = mlir.lower_fun(group_and_member, multiple_results=False)(
        ctx.replace(primitive=None, avals_in=(), avals_out=(int32_2,))
    )
    avals = [avals_in[i] for i in carried]
    program = f"{_compat.module_name(ctx)} on {mesh.device_count} devices"
    ordinal, site = _compat.next_site(ctx, program)
    dtype = avals[0].dtype
    parts = 2 if np.issubdtype(dtype, np.complexfloating) else 1  # a complex number is two floats
    attributes = {
        "program": program,
        "ordinal": np.int64(ordinal),
        "site": np.int64(site),
        "site_name": _site_name(name, avals, axes, flat),
        "dtype": {"complex64": "float32", "complex128": "float64"}.get(dtype.name, dtype.name),
        "leaf_elements": np.array([aval.size * parts for aval in avals], np.int64),
        "member_count": np.int64(placement.member_count * (world_size if beyond_mesh else 1)),
        "local_member_count": np.int64(placement.local_member_count),
        "replica_count": np.int64(placement.replica_count),
        "world_size": np.int64(world_size * device_ranks if flat else world_size),
        "local": np.int64(local),
        "flat": np.int64(flat),
    }
    call = jax.ffi.ffi_lowering("passing_psum", operand_output_aliases={i + 1: i for i in range(len(avals))})
    call_ctx = ctx.replace(avals_in=[int32_2, *avals], avals_out=[ctx.avals_out[i] for i in carried])
    sums = call(call_ctx, *where, *(leaves[i] for i in carried), **attributes)
    result = list(leaves)
    for i, value in zip(carried, sums, strict=True):
        result[i] = value
    return result


def wait_for_executions(timeout_s: float) -> bool:
    """Waits until what this thread dispatched to local CPU devices is over; False if it isn't after `timeout_s`.

    The CPU runs the executions that a thread dispatches one after the other: those on several devices in one line,
    those on a single one in another. So one more of each kind ends last. It must cost more than JAX's limit for
    running at once, out of turn.
    """
    if register_ffi.cache_info().currsize == 0:  # nothing was ever lowered
        return True
    devices = jax.local_devices(backend="cpu")
    ones = np.ones((len(devices), 64, 64), np.float32)
    across = jax.NamedSharding(jax.sharding.Mesh(np.array(devices), ("d",)), jax.sharding.PartitionSpec("d"))
    work = jax.jit(lambda x: x @ x)
    last = [work(jax.device_put(ones, place)) for place in (across, *devices)]
    until = time.monotonic() + timeout_s
    while not all(array.is_ready() for array in last) and time.monotonic() < until:
        time.sleep(0.002)
    return all(array.is_ready() for array in last)


def _lower_elsewhere(ctx: mlir.LoweringRuleContext, *_: Any, **__: Any) -> Sequence[Any]:
    raise NotImplementedError(f"passing_psum runs on CPU devices only so far, not on {ctx.module_context.platforms}")


for _primitive in (passing_psum_p, passing_psum_invariant_p):
    _primitive.multiple_results = True
    _primitive.def_impl(functools.partial(_evaluate, _primitive))
    _primitive.def_effectful_abstract_eval(functools.partial(_abstract_eval, _primitive))
    ad.primitive_jvps[_primitive] = functools.partial(_jvp, _primitive)
    ad.primitive_transposes[_primitive] = functools.partial(_transpose, _primitive)
    batching.fancy_primitive_batchers[_primitive] = functools.partial(_batch, _primitive)
    # Each call is lowered by itself: with JAX's cache, equal calls would share a site.
    mlir.register_lowering(_primitive, _lower_elsewhere, cacheable=False)
    mlir.register_lowering(_primitive, _lower, platform="cpu", cacheable=False)
