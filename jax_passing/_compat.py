"""Every JAX name that is not public: no public hook exists for a primitive with named axes (jax 0.10.0 to 0.12.0)."""

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
from jax._src import config as _config
from jax._src import core as _core
from jax._src import distributed as _distributed
from jax._src import mesh as _mesh
from jax._src import sharding_impls as _sharding_impls
from jax._src import xla_bridge as _xla_bridge
from jax._src.clusters import ClusterEnv as _ClusterEnv
from jax.interpreters import mlir

Axis = Any  # a mesh axis's or vmap axis's name
Aval = Any  # a ShapedArray

NamedAxisEffect = _core.NamedAxisEffect


# Where this process runs.


def backend_exists() -> bool:
    """Whether JAX has devices already; asking it for them would create them."""
    return bool(_xla_bridge.backends_are_initialized())


def process_in_cluster() -> tuple[int, int, str] | None:
    """(index of this process, number of processes, who says so), as `jax.distributed` knows or would detect it."""
    if jax.distributed.is_initialized():
        state = _distributed.global_state
        return int(state.process_id), int(state.num_processes), "jax.distributed"
    for cluster in _ClusterEnv._cluster_types:
        if not cluster.opt_in_only_method and cluster.is_env_present():
            return (
                int(cluster.get_process_id()),
                int(cluster.get_process_count()),
                f"{cluster.__name__}, as JAX detects",
            )
    return None


# Tracing.


def check_vma() -> bool:
    """Whether the code being traced is under `shard_map(check_vma=True)`."""
    return bool(_config._check_vma.value)


def axis_size(name: Axis) -> int:
    """Size of a mesh or vmap axis; NameError if it isn't bound here."""
    env = _core.get_axis_env()
    if not env.axis_exists(name):
        raise NameError(f"unbound axis name: {name}; psum needs jax.shard_map, jax.pmap or jax.vmap to bind it")
    return int(env.axis_size(name))


def manual_axes() -> frozenset[Axis]:
    """Mesh axes over which the code being traced is per-device."""
    return frozenset(jax.sharding.get_abstract_mesh().manual_axes)


def must_vary(axes: Sequence[Axis]) -> frozenset[Axis]:
    """Those of `axes` over which the types of `check_vma=True` say whether a value varies."""
    names = manual_axes().intersection(axes)
    if _config.remove_size_one_mesh_axis_from_type.value:
        names = frozenset(name for name in names if axis_size(name) != 1)
    return names


def varying(aval: Aval) -> frozenset[Axis]:
    """Mesh axes over which a value of this type differs from device to device."""
    return frozenset(aval.mat.varying)


def without_varying(aval: Aval, axes: Sequence[Axis]) -> Aval:
    """The same type, invariant over `axes`."""
    return aval.update(manual_axis_type=aval.mat.update(varying=aval.mat.varying.difference(axes)))


def pvary(x: Any, axes: frozenset[Axis]) -> Any:
    """Casts from invariant to varying over `axes`."""
    return _core.pvary(x, tuple(sorted(axes))) if axes else x


def depths(arrays: Sequence[Any]) -> list[int]:
    """How many equations of the program being traced must run one after the other before each of `arrays` is there.

    All 0 outside of a trace, under vmap, or should another JAX not tell: callers may only use it to order their work.
    """
    depth: dict[int, int] = {}
    stack = [equation for equation in map(_equation, arrays) if equation is not None]
    while stack:
        equation = stack[-1]
        before = [e for e in map(_equation, getattr(equation, "in_tracers", ())) if e is not None]
        missing = [e for e in before if id(e) not in depth]
        stack.extend(missing)
        if not missing:
            stack.pop()
            depth[id(equation)] = 1 + max((depth[id(e)] for e in before), default=0)
    return [0 if (equation := _equation(array)) is None else depth[id(equation)] for array in arrays]


def _equation(array: Any) -> Any:
    return getattr(array, "parent", None) if isinstance(array, jax.core.Tracer) else None


def check_types(avals: Sequence[Aval], axes: Sequence[Axis], name: str) -> None:
    """Raises as `lax.psum` does on operands of another mesh, or that are unreduced over `axes`."""
    _core.check_avals_context_mesh(avals, name)
    _core.check_unreduced_args(avals, axes, name)


# Lowering.


class SiteCounter:
    """Numbers the sites of one module as they are lowered."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.next_site = 0


_counters_lock = threading.Lock()  # JAX may lower on several threads
_counters: WeakKeyDictionary[Any, SiteCounter] = WeakKeyDictionary()
_module_counts: dict[str, int] = {}


def next_site(ctx: mlir.LoweringRuleContext, program: str) -> tuple[int, int]:
    """(how many modules of that program this process lowered before this one, how many sites this module has so far).

    All contexts of one module share `shape_poly_state`; it goes when the lowering is over.
    """
    key = ctx.module_context.shape_poly_state
    with _counters_lock:
        counter = _counters.get(key)
        if counter is None:
            counter = _counters[key] = SiteCounter(_module_counts.get(program, 0))
            _module_counts[program] = counter.ordinal + 1
        site = counter.next_site
        counter.next_site += 1
        return counter.ordinal, site


def module_name(ctx: mlir.LoweringRuleContext) -> str:
    """`jit_step` for a jitted function `step`."""
    return str(ctx.module_context.module.operation.attributes["sym_name"]).strip('"')


def context_mesh() -> Any:
    """The mesh of `jax.set_mesh`, with its devices; None if there is none."""
    mesh = _mesh.get_concrete_mesh()
    return None if mesh is None or mesh.empty else mesh


class LoweringMesh(NamedTuple):
    """What a module is lowered for. Outside of any mesh: no axes, and devices that all run the same.

    Attributes:
      axis_sizes: the mesh's axes, in order.
      manual_axes: those along which each device runs for itself.
      device_count: number of devices.
      devices: the devices in row-major order, if JAX tells them.
    """

    axis_sizes: dict[Axis, int]
    manual_axes: frozenset[Axis]
    device_count: int
    devices: list[Any] | None


def lowering_mesh(ctx: mlir.LoweringRuleContext) -> LoweringMesh:
    """The mesh around the equation that is being lowered."""
    context: Any = ctx.module_context.axis_context
    devices: Any
    if isinstance(context, _sharding_impls.SPMDAxisContext):
        mesh: Any = context.mesh
        devices = None if isinstance(mesh, jax.sharding.AbstractMesh) else mesh.devices.flat
        axes = dict(mesh.shape), frozenset(context.manual_axes), mesh.size
    elif isinstance(context, _sharding_impls.ShardingContext):
        mesh = context_mesh()
        here = mesh is not None and mesh.size == context.num_devices
        devices = mesh.devices.flat if here else context.device_assignment
        axes = {}, frozenset(), context.num_devices
    else:
        raise NotImplementedError(f"passing_psum under {type(context).__name__}")
    return LoweringMesh(*axes, None if devices is None else list(devices))
