"""Checks the arguments of `pipeline`."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jax_passing.errors import UsageError
from jax_passing.partitioning.arrays import is_inexact
from jax_passing.partitioning.plan import Plan
from jax_passing.pipelining.schedule import Schedule
from jax_passing.pipelining.schedules import gpipe, interleaved, one_f_one_b, zb_h1

SCHEDULES: Mapping[str, Callable[[int, int], Schedule]] = {"gpipe": gpipe, "1f1b": one_f_one_b, "zb-h1": zb_h1}


def check_axes(mesh: Mesh, stage_axis: str, data_axis: str) -> None:
    if not {stage_axis, data_axis}.issubset(mesh.axis_names):
        raise UsageError(f"The mesh has the axes {mesh.axis_names}; a pipeline needs {stage_axis!r} and {data_axis!r}.")
    if stage_axis == data_axis:
        raise UsageError(f"stage_axis and data_axis are both {stage_axis!r}; the mesh needs an axis for each.")


def checked_specs(plan: Plan, mesh: Mesh, axes: tuple[str, str], param_specs: Any) -> list[PartitionSpec]:
    """Returns the PartitionSpec of each leaf of the parameters. `axes`: those of stages and data."""
    for shape, is_frozen in zip(plan.params_shapes, plan.frozen, strict=True):
        if not is_inexact(shape) and not is_frozen:
            raise UsageError(
                f"There are parameters of {shape.dtype}, but only floating-point parameters have gradients: give "
                "partition frozen=..., which says that they aren't trained."
            )
    specs = _specs_by_leaf(plan, param_specs)
    others = {axis: size for axis, size in mesh.shape.items() if axis not in axes}
    paths = jax.tree_util.tree_leaves_with_path(jax.tree.unflatten(plan.params_tree, plan.params_shapes))
    for (path, shape), spec in zip(paths, specs, strict=True):
        _check_spec(jax.tree_util.keystr(path) or "params", shape, spec, others)
    for stage in plan.stages:
        for piece in stage.pieces:
            if piece.rows is not None:  # whole leaves are checked above
                _check_spec(piece.name, piece.of(plan.params_shapes[piece.leaf]), specs[piece.leaf], others)
    return specs


def _specs_by_leaf(plan: Plan, param_specs: Any) -> list[PartitionSpec]:
    if param_specs is None:
        return [PartitionSpec()] * len(plan.params_shapes)
    specs: list[PartitionSpec] = []

    def add(spec: Any, part: Any) -> None:
        specs.extend([spec] * len(jax.tree.leaves(part)))

    params = jax.tree.unflatten(plan.params_tree, plan.params_shapes)
    try:
        jax.tree.map(add, param_specs, params, is_leaf=lambda one: one is None or isinstance(one, PartitionSpec))
    except ValueError as error:
        raise UsageError(f"param_specs isn't a prefix of the tree of parameters: {error}") from None
    return specs


def _check_spec(name: str, shape: jax.ShapeDtypeStruct, spec: Any, sizes: Mapping[Any, int]) -> None:
    """Checks the spec of a parameter, or of a stage's rows of it. `sizes`: of the mesh's other axes."""
    if not isinstance(spec, PartitionSpec):
        raise UsageError(f"param_specs has {spec!r} for {name}; it has to be a jax.sharding.PartitionSpec.")
    if len(spec) > len(shape.shape):
        raise UsageError(f"{spec} in param_specs has {len(spec)} entries; {name} has the shape {shape.shape}.")
    for size, entry in zip(shape.shape, spec, strict=False):
        along = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        if not sizes.keys() >= set(along):
            raise UsageError(
                f"{spec} in param_specs names {', '.join(repr(axis) for axis in along if axis not in sizes)}. "
                "Parameters can only lie along axes other than those of stages and data; this mesh has "
                f"{', '.join(map(repr, sorted(sizes))) or 'none'}."
            )
        parts = math.prod(sizes[axis] for axis in along)
        if size % parts:
            raise UsageError(
                f"{spec} in param_specs cuts a dimension of {name}, which has the shape {shape.shape}, into {parts} "
                f"parts; {size} isn't a multiple of that."
            )


def checked_schedule(plan: Plan, mesh: Mesh, stage_axis: str, microbatches: int, schedule: str | Schedule) -> Schedule:
    """Makes the schedule if it is given by name, and checks that it suits the plan and the mesh."""
    if not isinstance(microbatches, int | np.integer) or microbatches < 1:
        raise UsageError(f"microbatches is {microbatches!r}; it has to be a whole number, at least 1.")
    devices, stages = mesh.shape[stage_axis], len(plan.stages)
    if isinstance(schedule, str):
        schedule = _schedule_of(schedule, devices, stages, microbatches)
    if (schedule.stages, len(schedule.tasks), schedule.microbatches) != (stages, devices, microbatches):
        raise UsageError(
            f"The schedule is for {schedule.stages} stages on {len(schedule.tasks)} devices and "
            f"{schedule.microbatches} microbatches; the plan has {stages} stages, the axis {stage_axis!r} has "
            f"{devices} devices, and microbatches is {microbatches}."
        )
    schedule.check()
    return schedule


def _schedule_of(name: str, devices: int, stages: int, microbatches: int) -> Schedule:
    if name == "interleaved":
        if stages % devices:
            raise UsageError(f"{stages} stages aren't a multiple of {devices} devices, which interleaving needs.")
        return interleaved(devices, microbatches, stages // devices)
    if name not in SCHEDULES:
        raise UsageError(f"schedule is {name!r}; it may be 'interleaved', {', '.join(map(repr, SCHEDULES))}.")
    if stages != devices:
        raise UsageError(
            f"The plan has {stages} stages and the mesh has {devices} devices for them: the schedule {name!r} needs as "
            "many stages as devices. With several stages on each device, use 'interleaved'."
        )
    return SCHEDULES[name](devices, microbatches)
