"""JAX lowers a module for a mesh, which this file reads."""

from typing import Any, NamedTuple

import jax
from jax._src import mesh as private_mesh
from jax._src import sharding_impls
from jax.interpreters import mlir

from jax_passing._compat.named_axes import Axis


class LoweringMesh(NamedTuple):
    """The mesh that a module is lowered for has no axes outside of any mesh, and its devices all run the same.

    Attributes:
      axis_sizes: sizes of the mesh's axes, in order.
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
        """Tells whether XLA has nothing left to partition."""
        return self.device_count == 1 or (self.manual_axes.issuperset(self.axis_sizes) and bool(self.axis_sizes))


def lowering_mesh(ctx: mlir.LoweringRuleContext) -> LoweringMesh:
    """Returns the mesh around the equation that is being lowered."""
    context: Any = ctx.module_context.axis_context
    devices: Any
    if isinstance(context, sharding_impls.SPMDAxisContext):
        mesh: Any = context.mesh
        devices = None if isinstance(mesh, jax.sharding.AbstractMesh) else mesh.devices.flat
        axes = dict(mesh.shape), frozenset(context.manual_axes), mesh.size
    elif isinstance(context, sharding_impls.ShardingContext):
        mesh = _context_mesh()
        here = mesh is not None and mesh.size == context.num_devices
        devices = mesh.devices.flat if here else context.device_assignment
        axes = {}, frozenset(), context.num_devices
    else:
        raise NotImplementedError(f"passing_psum under {type(context).__name__}")
    return LoweringMesh(*axes, None if devices is None else list(devices))


def _context_mesh() -> Any:
    """Returns the mesh of `jax.set_mesh`, with its devices; None if there is none."""
    mesh = private_mesh.get_concrete_mesh()
    return None if mesh is None or mesh.empty else mesh
