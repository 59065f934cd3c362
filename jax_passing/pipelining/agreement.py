"""Makes the processes of a mesh agree on a pipeline: they compare their plans before they begin.

Processes that cut a model in different positions would send each other the wrong arrays. If these had the right shapes,
the loss would be wrong without an error.
"""

import hashlib
import textwrap
from collections.abc import Mapping, Sequence

import jax
from jax.sharding import Mesh, PartitionSpec

from jax_passing.errors import UsageError
from jax_passing.host.processes import Fact, differences, told, told_unless_refused
from jax_passing.partitioning.digest import ADDRESS, digest_of
from jax_passing.partitioning.plan import Plan
from jax_passing.pipelining.jobs import SessionInfo, processes_of
from jax_passing.pipelining.passes import Passes
from jax_passing.pipelining.schedule import Schedule

WHAT = "jax_passing.pipeline"
SHOWN_MAX = 4  # differences are shown; one cut in another position changes all stages behind it


def facts_of(
    plan: Plan,
    passes: Sequence[Passes],
    mesh: Mesh,
    axes: tuple[str, str],
    schedule: Schedule,
    specs: Sequence[PartitionSpec],
) -> dict[str, Fact]:
    """Returns by name the facts that the processes must agree on. `axes`: those of stages and data."""
    tasks = _digest([list(map(str, own)) for own in schedule.tasks])
    devices = [device.id for device in mesh.devices.flat]
    along = ", ".join(f"{axis}: {size}" for axis, size in mesh.shape.items())
    params, batch = (
        _digest([(jax.tree_util.keystr(path), shape) for path, shape in jax.tree_util.tree_leaves_with_path(tree)])
        for tree in (plan.params_tree.unflatten(plan.params_shapes), plan.batch_tree.unflatten(plan.batch_shapes))
    )
    facts = {
        "jax": (jax.__version__, jax.__version__),
        "mesh": (_digest((along, devices, mesh.axis_types)), f"axes {along}"),
        "stage_axis and data_axis": (str(axes), str(axes)),
        "parameters": (params, f"{len(plan.params_shapes)} leaves"),
        "param_specs": (_digest(specs), " ".join(map(str, dict.fromkeys(specs)))),
        "batch": (batch, " ".join(f"{shape.dtype}{list(shape.shape)}" for shape in plan.batch_shapes)),
        "microbatches": (str(schedule.microbatches), str(schedule.microbatches)),
        "schedule": (tasks, schedule.name),
        "stages": (str(len(plan.stages)), str(len(plan.stages))),
    }
    for number, (one, stage_facts) in enumerate(zip(passes, plan.facts, strict=True)):
        names = textwrap.shorten(" ".join(piece.name for piece in one.stage.pieces), 120)
        shown = f"parameters {names} from {stage_facts.location} on"
        facts[f"stage {number}"] = (_digest_of_passes(one), shown)
    return facts


def agree(mesh: Mesh, facts: Mapping[str, Fact], own: SessionInfo | None) -> dict[int, SessionInfo | None]:
    """Compares the facts of all processes that have a part of the mesh, and returns the session of each of them.

    Each process calls this, or raises before, in `refusals_told(WHAT, ...)`. Raises UsageError on all of them if
    they don't have the same pipeline, if one of them has refused it, or if one doesn't come in time.
    """
    said = told_unless_refused(WHAT, "make this pipeline", [facts, own], processes_of(mesh))
    differing = differences({process: facts for process, (facts, _) in said.items()})
    if differing:
        more = f", and {len(differing) - SHOWN_MAX} more" if len(differing) > SHOWN_MAX else ""
        raise UsageError(
            "The processes of the mesh don't have the same pipeline. They differ in "
            f"{', '.join(differing[:SHOWN_MAX])}{more}. Make the plan from the same model with the same arguments in "
            "every process, including the parameters that are initialized and arrays that the loss closes over, and "
            "call pipeline with the same arguments."
        )
    return {process: None if info is None else SessionInfo(*info) for process, (_, info) in said.items()}


def agree_on_scale(mesh: Mesh, scale: float) -> None:
    """Compares the loss scales of all processes that have a part of the mesh, which all call this.

    Stages with several scales would divide gradients by another number than the loss was multiplied by. Raises
    UsageError on all of them.
    """
    said = told("scaled of a pipeline", repr(scale), processes_of(mesh), UsageError)
    differing = differences({process: {"the loss scale": (text, text)} for process, text in said.items()})
    if differing:
        raise UsageError(
            f"The processes of the mesh differ in {differing[0]}, so this step's gradients are wrong. Give scaled the "
            "same scale in every process: the one that it returned, and after a restart the one that was saved with "
            "the parameters."
        )


def _digest_of_passes(passes: Passes) -> str:
    """Digests what a stage computes: its forward pass, and the operations of its backward pass."""
    stage = passes.stage
    words: list[object] = [stage.pieces, stage.batch, stage.carried_in, stage.carried_out, stage.needs_gradient_in]
    words += [stage.needs_gradient_out, stage.outputs, passes.kept, passes.handed_over]
    parts = (passes.forward_part, passes.whole)
    return _digest([words, [digest_of(part.operations, part.inputs, part.outputs, part.constants) for part in parts]])


def _digest(value: object) -> str:
    return hashlib.sha256(ADDRESS.sub("", repr(value)).encode()).hexdigest()
