"""Every JAX name that is not public: no public hook exists for a primitive with named axes (jax 0.10.0 to 0.12.0)."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import CodeType
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import jax
from jax._src import ad_checkpoint as _ad_checkpoint
from jax._src import config as _config
from jax._src import core as _core
from jax._src import custom_derivatives as _custom_derivatives
from jax._src import distributed as _distributed
from jax._src import mesh as _mesh
from jax._src import named_sharding as _named_sharding
from jax._src import pjit as _pjit
from jax._src import shard_map as _shard_map
from jax._src import sharding_impls as _sharding_impls
from jax._src import source_info_util as _source_info_util
from jax._src import xla_bridge as _xla_bridge
from jax._src.clusters import ClusterEnv as _ClusterEnv
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import mlir as _mlir
from jax._src.lax import parallel as _parallel
from jax._src.lax.control_flow import conditionals as _conditionals
from jax._src.lax.control_flow import loops as _loops
from jax.extend.mlir import ir
from jax.interpreters import ad, mlir

_T = TypeVar("_T")

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

jax_collectives: Any = _parallel
"""JAX's own functions, even where `lax_over_hosts` has put others into jax.lax."""


def tracing() -> bool:
    """Whether the calling code is being traced or transformed, so that no values are known."""
    return not _core.trace_state_clean()


def check_vma() -> bool:
    """Whether the code being traced is under `shard_map(check_vma=True)`."""
    return bool(_config._check_vma.value)


def axis_size(name: Axis) -> int:
    """Size of a mesh or vmap axis; NameError if it isn't bound here."""
    env = _core.get_axis_env()
    if not env.axis_exists(name):
        bound = ", ".join(map(repr, env.axis_sizes)) or "none"
        raise NameError(
            f"unbound axis name: {name}. Bound here: {bound}. Bind it with jax.shard_map, jax.pmap or jax.vmap around "
            "this call."
        )
    return int(env.axis_size(name))


def axis_exists(name: Axis) -> bool:
    """Whether an axis of this name is bound here."""
    return bool(_core.get_axis_env().axis_exists(name))


def manual_axes() -> frozenset[Axis]:
    """Mesh axes over which the code being traced is per-device."""
    return frozenset(jax.sharding.get_abstract_mesh().manual_axes)


def vmapped(axes: Sequence[Axis]) -> bool:
    """Whether one of `axes` is no mesh's."""
    return not set(axes) <= manual_axes()


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


def with_varying(aval: Aval, axes: frozenset[Axis]) -> Aval:
    """The same type, varying over `axes` too, in the mesh around: what is closed over has none."""
    if not axes:
        return aval
    sharding = aval.sharding.update(mesh=jax.sharding.get_abstract_mesh())
    return aval.update(sharding=sharding, manual_axis_type=aval.mat.update(varying=aval.mat.varying.union(axes)))


def is_constant(tracer: Any) -> bool:
    """Whether the program makes this of constants alone; False if that is long to tell, or another JAX doesn't."""
    tracer = _without_vmap(tracer)
    if not isinstance(tracer, jax.core.Tracer):
        return True
    waiting: list[Any] = [tracer]
    seen = 0
    while waiting:
        one = waiting.pop()
        seen += 1
        equation = getattr(one, "parent", None)
        if equation is not None:
            waiting += getattr(equation, "in_tracers", (None,))
        elif not isinstance(getattr(one, "val", None), _core.Literal) and not _is_closed_over(one):
            return False
        if seen > 100:
            return False
    return True


def derivative_has_sums(tracer: Any) -> bool:
    """Whether a sum, ours or JAX's, is among what the derivative of this is computed from; False outside of
    derivatives, or if another JAX doesn't tell."""
    sums = {*summing, _parallel.psum_p}
    return comes_from(
        getattr(tracer, "tangent", None),
        lambda equation: equation.primitive in sums or any(map(holds_sums, bodies(equation.params))),
    )


def comes_from(tracer: Any, is_meant: Callable[[Any], bool]) -> bool:
    """Whether such an equation is among those that the program being traced makes this from."""
    waiting, seen = [_without_vmap(tracer)], set()
    while waiting:
        equation = getattr(waiting.pop(), "parent", None)
        if equation is None or id(equation) in seen or not hasattr(equation, "params"):
            continue
        seen.add(id(equation))
        if is_meant(equation):
            return True
        waiting += getattr(equation, "in_tracers", ())
    return False


def _without_vmap(tracer: Any) -> Any:
    """What a tracer of vmap stands for."""
    while hasattr(tracer, "batch_dim"):
        tracer = tracer.val
    return tracer


def _is_closed_over(tracer: Any) -> bool:
    frame = getattr(getattr(tracer, "_trace", None), "frame", None)
    return getattr(tracer, "val", None) in getattr(frame, "constvar_to_val", ())


def current_trace() -> Any:
    """What the program that is being traced belongs to: the same for all of its lines; None outside of jit and such."""
    trace = _core.trace_ctx.trace
    while trace is not None and not hasattr(trace, "frame"):
        trace = getattr(trace, "parent_trace", None)
    return trace


# What the program depends on.

_scope: Any = jax.make_user_context(None)


def scope() -> Any:
    """This thread's value; part of JAX's cache keys."""
    return _scope.value


def scope_context(value: Any) -> AbstractContextManager[None]:
    context: AbstractContextManager[None] = _scope(value)
    return context


def set_scope(value: Any) -> None:
    """For the calling thread, until it is set again."""
    _scope(value).__enter__()


# JAX's own rules of differentiation that sum over mesh axes.


def wrap_transpose_of_cast(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Of the cast from invariant to varying: (cotangent, operand, *, axes)."""
    ad.primitive_transposes[_core.pvary_p] = wrap(ad.primitive_transposes[_core.pvary_p])


def wrap_transpose_of_psum(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Of `lax.psum` under check_vma: (cotangent, operand, *, axes)."""
    primitive = _parallel.psum_invariant_p
    ad.primitive_transposes[primitive] = wrap(ad.primitive_transposes[primitive])


def wrap_transpose_of_shard_map(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """(cotangents, *operands, in_specs, out_specs, mesh, check_vma, …); operands that aren't arrays are linear."""
    fancy = getattr(_ad, "fancy_transposes", {})
    rules = fancy if _shard_map.shard_map_p in fancy else ad.primitive_transposes
    rules[_shard_map.shard_map_p] = wrap(rules[_shard_map.shard_map_p])


def traced_frames() -> list[tuple[CodeType, int]]:
    """The stack of the line that JAX works on: while it transposes, that of the line that is transposed."""
    return _frames(_source_info_util.current().traceback)


def _frames(traceback: Any) -> list[tuple[CodeType, int]]:
    return list(zip(*traceback.raw_frames(), strict=True)) if traceback else []


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
        self.counts: dict[object, int] = {}


# Of each thread: .modules that it has lowered, as keys; .calls, the stacks of the inner jitted calls around.
_lowering = threading.local()
_counters_lock = threading.Lock()  # JAX may lower on several threads
_counters: WeakKeyDictionary[Any, SiteCounter] = WeakKeyDictionary()
_module_counts: dict[str, int] = {}


_of_blocks: WeakKeyDictionary[Any, list[tuple[Any, Any]]] = WeakKeyDictionary()  # by module


def of_block(ctx: mlir.LoweringRuleContext, make: Callable[[], _T]) -> _T:
    """What `make` made when it was first asked for, in the block of operations that is being lowered now."""
    block = ir.InsertionPoint.current.block
    of_blocks = _of_blocks.setdefault(ctx.module_context.shape_poly_state, [])
    for known, value in reversed(of_blocks):
        if known == block:
            made: _T = value
            return made
    made = make()
    of_blocks.append((block, made))
    return made


def modules_of_thread() -> list[tuple[str, int]]:
    """(program, ordinal) of all modules with sums that the calling thread has lowered."""
    return list(getattr(_lowering, "modules", ()))


def next_site(ctx: mlir.LoweringRuleContext, program: str, alike: object) -> tuple[int, int, int]:
    """(how many modules of that program this process lowered before this one, how many sites this module has so far,
    how many of them are `alike`).

    All contexts of one module share `shape_poly_state`; it goes when the lowering is over.
    """
    with _counters_lock:
        counter = _counter(ctx, program)
        site = counter.next_site
        counter.next_site += 1
        nth = counter.counts.get(alike, 0)
        counter.counts[alike] = nth + 1
    return counter.ordinal, site, nth


def module_ordinal(ctx: mlir.LoweringRuleContext, program: str) -> int:
    """How many modules of that program this process lowered before this one."""
    with _counters_lock:
        return _counter(ctx, program).ordinal


def _counter(ctx: mlir.LoweringRuleContext, program: str) -> SiteCounter:
    key = ctx.module_context.shape_poly_state
    counter = _counters.get(key)
    if counter is None:
        counter = _counters[key] = SiteCounter(_module_counts.get(program, 0))
        _module_counts[program] = counter.ordinal + 1
    _lowering.__dict__.setdefault("modules", {})[program, counter.ordinal] = None
    return counter


def program_name(ctx: mlir.LoweringRuleContext) -> str:
    """`jit_step on 4 devices` for a jitted function `step`."""
    module_name = str(ctx.module_context.module.operation.attributes["sym_name"]).strip('"')
    return f"{module_name} on {lowering_mesh(ctx).device_count} devices"


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

    @property
    def all_manual(self) -> bool:
        """Whether XLA has nothing left to partition."""
        return self.device_count == 1 or (self.manual_axes.issuperset(self.axis_sizes) and bool(self.axis_sizes))


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


# Jitted functions inside of programs.


def calls_around() -> list[list[tuple[CodeType, int]]]:
    """The stacks of the calls of jitted functions around what is being lowered, the innermost first."""
    return list(reversed(getattr(_lowering, "calls", ())))


def _lower_jit(ctx: mlir.LoweringRuleContext, *operands: Any, jaxpr: Any, **params: Any) -> Any:
    """JAX's rule lowers a jitted function once, however often a program calls it, and XLA makes the copies: nothing
    would tell their sums apart, nor put them in order. So one with sums is lowered where it is called, line by line."""
    if not holds_sums(jaxpr):
        return _pjit._pjit_lowering(ctx, *operands, jaxpr=jaxpr, **params)
    calls = _lowering.__dict__.setdefault("calls", [])
    calls.append(_frames(ctx.traceback))
    try:
        if any(not isinstance(each, _named_sharding.UnspecifiedValue) for each in _shardings(params)):
            # What it says of shardings counts: copies, which look alike, are told apart by the module's fingerprint.
            return _pjit._pjit_lowering(ctx, *operands, jaxpr=jaxpr, **params)
        return _lower_lines(ctx, operands, jaxpr)
    finally:
        calls.pop()


def _lower_call(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The same for calls that JAX makes of its own, as in the body of a scan."""

    def lower(ctx: mlir.LoweringRuleContext, *operands: Any, call_jaxpr: Any, **params: Any) -> Any:
        if holds_sums(call_jaxpr):
            return _lower_lines(ctx, operands, call_jaxpr)
        return rule(ctx, *operands, call_jaxpr=call_jaxpr, **params)

    return lower


def _lower_lines(ctx: mlir.LoweringRuleContext, operands: Sequence[Any], jaxpr: Any) -> Any:
    body = getattr(jaxpr, "jaxpr", jaxpr)
    results, tokens = _mlir.jaxpr_subcomp(
        ctx.module_context,
        body,
        ctx.name_stack,
        ctx.tokens_in,
        _mlir.ir_consts(getattr(jaxpr, "consts", ()), [variable.aval for variable in body.constvars]),
        *operands,
        dim_var_values=ctx.dim_var_values,
        const_lowering=ctx.const_lowering,
        outer_traceback=ctx.traceback,
    )
    ctx.set_tokens_out(tokens)
    return results


def _shardings(params: Mapping[str, Any]) -> list[Any]:
    return [*params["in_shardings"], *params["out_shardings"]]


summing: set[Any] = set()
"""The primitives that are sums, or are made of them when they are lowered."""

_with_sums: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


def holds_sums(jaxpr: Any) -> bool:
    """Whether this program, or any inside of it, calls one of those primitives."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    found = _with_sums.get(jaxpr)
    if found is None:
        found = any(
            equation.primitive in summing or any(map(holds_sums, _core.jaxprs_in_params(equation.params)))
            for equation in jaxpr.eqns
        )
        _with_sums[jaxpr] = found
    return found


def bodies(params: Mapping[str, Any]) -> list[Any]:
    """The programs inside of an equation."""
    return list(_core.jaxprs_in_params(dict(params)))


mlir.register_lowering(_pjit.jit_p, _lower_jit, cacheable=False)
for _primitive in {_core.call_p, _core.closed_call_p}:
    mlir.register_lowering(_primitive, _lower_call(_mlir._lowerings[_primitive].rule), cacheable=False)

# As a jitted function, each of these would be lowered once for several equal calls.
_mlir._uncacheable_primitives.update(
    {_loops.scan_p, _ad_checkpoint.remat_p, _custom_derivatives.custom_jvp_call_p, _shard_map.shard_map_p}
)


def wrap_lowering_of_control_flow(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Of loops (scan becomes one) and branches: (context, *operands, **parameters)."""
    for primitive in (_loops.while_p, _conditionals.cond_p):
        mlir.register_lowering(primitive, wrap(_mlir._lowerings[primitive].rule), cacheable=False)


# What was compiled.


def wrap_call_of_compiled(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Of `jax.stages.Compiled`: (self, *args, **kwargs)."""
    compiled: Any = jax.stages.Compiled
    compiled.__call__ = wrap(compiled.__call__)
