"""`pipeline`: the stages of a plan at work at once, on a mesh of devices."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_passing.errors import PipelineError
from jax_passing.partitioning.plan import Plan
from jax_passing.partitioning.program import is_inexact
from jax_passing.partitioning.stages import Output
from jax_passing.pipelining.runner import Runner
from jax_passing.pipelining.schedule import Kind, Schedule, Task
from jax_passing.pipelining.schedules.gpipe import gpipe
from jax_passing.pipelining.schedules.interleaved import interleaved
from jax_passing.pipelining.schedules.one_f_one_b import one_f_one_b
from jax_passing.pipelining.schedules.zero_bubble import zb_h1

SCHEDULES: Mapping[str, Callable[[int, int], Schedule]] = {"gpipe": gpipe, "1f1b": one_f_one_b, "zb-h1": zb_h1}


class Pipeline:
    """What `pipeline` returns: `pipeline(params, batch)` is shaped like `jax.value_and_grad` of the loss.

    Attributes:
      plan: of the model.
      mesh: of all devices.
      schedule: who does what when.
    """

    def __init__(self, plan: Plan, mesh: Mesh, schedule: Schedule, stage_axis: str, data_axis: str):
        self.plan = plan
        self.mesh = mesh
        self.schedule = schedule
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        rows = np.moveaxis(mesh.devices, mesh.axis_names.index(stage_axis), 0)
        self._width = rows.shape[1]
        device_of = schedule.device_of
        self._runners = []
        for number, stage in enumerate(plan.stages):
            held = [piece.of(plan.params_shapes[piece.leaf]) for piece in stage.pieces]
            own = Mesh(rows[device_of[number]], (data_axis,))
            self._runners.append(Runner(stage, held, plan.batch_shapes, own, schedule.microbatches))
        self._homes: dict[int, Runner] = {}  # by leaf of the parameters, the first stage that uses it
        for runner in reversed(self._runners):
            self._homes.update(dict.fromkeys((piece.leaf for piece in runner.passes.stage.pieces), runner))
        spans = [span for device in schedule.timeline() for span in device]
        self._order = [span.task for span in sorted(spans, key=lambda span: span.begin_s)]

    def place(self, params: Any) -> Any:
        """The parameters, each on the devices of the (first) stage that uses it: a device holds its own stages' only.

        Rows of one array that several stages use stay together, on the first one's devices.
        """
        leaves = self.plan.leaves_of_params(params)
        for leaf, runner in self._homes.items():
            leaves[leaf] = jax.device_put(leaves[leaf], runner.same)
        return jax.tree.unflatten(self.plan.params_tree, leaves)

    def __call__(self, params: Any, batch: Any) -> tuple[Any, Any]:
        """The mean loss (and aux) of all microbatches on all devices, and its gradients.

        Args:
          params: as for the plan. They are moved to where they are needed; after `place` they are there.
          batch: like the plan's, for all microbatches and all of this host's devices along the data axis: arrays with
            as many times the rows, or with a leading dimension for that (random keys, for example).

        Returns:
          The loss, or (loss, aux); and the gradients, which lie where their parameters do. Of aux, what is of floating
          point is the mean, and anything else what this host's last microbatch has left.

        Raises PipelineError if the batch has other shapes, PartitionError if the parameters have.
        """
        batches = self._batches(batch)
        held = [
            [jax.device_put(arrays[piece.name], runner.same) for piece in runner.passes.stage.pieces]
            for runner, arrays in zip(self._runners, self.plan.split(params), strict=True)
        ]
        run = _Run(self._runners, held, batches, self.schedule)
        for task in self._order:
            run.do(task)
        return self._result(run), self._gradients(run, params)

    def _batches(self, batch: Any) -> list[list[jax.Array]]:
        """By stage: the leaves that it looks at, [device, microbatch, ...]."""
        leaves, tree = jax.tree.flatten(batch)
        if tree != self.plan.batch_tree:
            raise PipelineError(
                f"This batch is of another structure than the plan's: {tree} instead of {self.plan.batch_tree}."
            )
        count = (self._width, self.schedule.microbatches)
        arranged = [_arranged(leaf, shape, count) for leaf, shape in zip(leaves, self.plan.batch_shapes, strict=True)]
        return [
            [jax.device_put(arranged[leaf], runner.differing) for leaf in runner.passes.stage.batch]
            for runner in self._runners
        ]

    def _result(self, run: "_Run") -> Any:
        left: list[tuple[Output, Any]] = []
        for runner, by_microbatch in zip(self._runners, run.outputs, strict=True):
            results = [array[-1] for array in by_microbatch[-1]]
            floats = [index for index, array in enumerate(results) if is_inexact(array)]
            if floats:
                means = runner.mean([[arrays[index] for index in floats] for arrays in by_microbatch])
                for index, mean in zip(floats, means, strict=True):
                    results[index] = mean
            left += zip(runner.passes.stage.outputs, jax.device_put(results, self._everywhere), strict=True)
        return self.plan.result(left)

    def _gradients(self, run: "_Run", params: Any) -> Any:
        by_name = [
            {
                piece.name: jax.device_put(gradient, self._homes[piece.leaf].same)
                for piece, gradient in zip(runner.passes.stage.pieces, sums, strict=True)
            }
            for runner, sums in zip(self._runners, run.sums, strict=True)
        ]
        wanted = jax.tree.map(lambda leaf: leaf.sharding if isinstance(leaf, jax.Array) else self._everywhere, params)
        return jax.device_put(self.plan.merge_gradients(by_name), wanted)


class _Run:
    """One step.

    Attributes:
      sums: by stage, of the gradients of what it holds.
      outputs: by stage and microbatch, what it has left.
    """

    def __init__(
        self, runners: Sequence[Runner], held: Sequence[Any], batches: Sequence[Any], schedule: Schedule
    ) -> None:
        self._runners = runners
        self._held = held
        self._batches = batches
        self.sums = [runner.zeros() for runner in runners]
        self.outputs: list[list[Any]] = [[None] * schedule.microbatches for _ in runners]
        self._carried: dict[tuple[int, int], Any] = {}  # to a stage, of a microbatch
        self._known: dict[tuple[int, int], dict[int, Any]] = {}  # values of a backward pass
        self._left = [schedule.microbatches] * len(runners)  # gradients that are still to be added

    def do(self, task: Task) -> None:
        match task.kind:
            case Kind.FORWARD:
                self._forward(task)
            case Kind.INPUTS:
                self._to_inputs(task)
            case Kind.WEIGHTS | Kind.BACKWARD:
                self._add_gradients(task)

    def _forward(self, task: Task) -> None:
        stage, runner, key = task.stage, self._runners[task.stage], (task.stage, task.microbatch)
        held, batch = self._held[stage], self._batches[stage]
        carried = self._carried.pop(key, [])
        on, left, kept = runner.forward(held, carried, batch, np.int32(task.microbatch))
        self.outputs[stage][task.microbatch] = left
        passes = runner.passes
        values = (*passes.held, *passes.carried, *passes.batch, *passes.kept)
        known = dict(zip(values, (*held, *carried, *batch, *kept), strict=True))
        needed = set(passes.whole.inputs)
        self._known[key] = {value: array for value, array in known.items() if value in needed}
        if stage + 1 < len(self._runners):
            # JAX sends while the devices go on.
            self._carried[stage + 1, task.microbatch] = jax.device_put(on, self._runners[stage + 1].differing)

    def _to_inputs(self, task: Task) -> None:
        runner, key = self._runners[task.stage], (task.stage, task.microbatch)
        passes, known = runner.passes, self._known[key]
        results = runner.backward(passes.to_inputs, known, np.int32(task.microbatch))
        count = len(results) - len(passes.handed_over)
        self._send_back(task, results[:count])
        known.update(zip(passes.handed_over, results[count:], strict=True))
        # What only this part needed goes.
        self._known[key] = {value: known[value] for value in passes.to_weights.inputs}

    def _add_gradients(self, task: Task) -> None:
        stage, runner, key = task.stage, self._runners[task.stage], (task.stage, task.microbatch)
        part = runner.passes.whole if task.kind is Kind.BACKWARD else runner.passes.to_weights
        self._left[stage] -= 1
        self.sums[stage], rest = runner.add_gradients(
            part, self._known.pop(key), np.int32(task.microbatch), self.sums[stage], self._left[stage] == 0
        )
        if task.kind is Kind.BACKWARD:
            self._send_back(task, rest)

    def _send_back(self, task: Task, gradients: Sequence[Any]) -> None:
        if task.stage == 0:
            return
        before = self._runners[task.stage - 1]
        sent = jax.device_put(list(gradients), before.differing)
        self._known[task.stage - 1, task.microbatch].update(zip(before.passes.coming, sent, strict=True))


def _arranged(leaf: Any, shape: jax.ShapeDtypeStruct, count: tuple[int, int]) -> Any:
    total = count[0] * count[1]
    stacked = (total, *shape.shape)
    fits = [stacked] + ([(total * shape.shape[0], *shape.shape[1:])] if shape.shape else [])
    if jnp.result_type(leaf) != shape.dtype:
        raise PipelineError(f"A leaf of the batch is {jnp.result_type(leaf)}; the plan was made for {shape.dtype}.")
    if np.shape(leaf) not in fits:
        raise PipelineError(
            f"A leaf of the batch has shape {np.shape(leaf)}. A microbatch has {shape.shape}, and {total} of them are "
            f"needed ({count[1]} for each of {count[0]} devices), so the shape has to be "
            f"{' or '.join(map(str, fits))}. A random key is split for that: jax.random.split(key, {total})."
        )
    return leaf.reshape(*count, *shape.shape)


def pipeline(
    plan: Plan,
    mesh: Mesh,
    *,
    microbatches: int,
    schedule: str | Schedule = "1f1b",
    stage_axis: str = "stage",
    data_axis: str = "data",
) -> Pipeline:
    """The loss of a plan and its gradients, computed by all devices of a mesh at once.

    Each stage is compiled for its own devices, the row of the mesh that it is on, and holds its own parameters,
    gradients and activations only. What the stages carry to each other is sent while they compute. Where a stage has
    the gradients of its last microbatch, they are summed over the data axis by `jax_passing.psum`, in buckets, while
    the other stages are still at work; over the hosts, too, if `jax_passing.init` declares the data axis. Without a
    session it stays in this process.

    Args:
      plan: made by `jax_passing.partition` for the shapes of one microbatch of one device.
      mesh: of this process's devices, with both axes.
      microbatches: how many each device does in a step.
      schedule: "gpipe", "1f1b", "interleaved", "zb-h1", or a table that you have made. With "interleaved" the plan has
        a multiple of the stage axis's stages.
      stage_axis: name of the mesh's axis along which the stages are.
      data_axis: name of the other one.

    Raises PipelineError if the plan, the mesh and the schedule don't suit each other.
    """
    if set(mesh.axis_names) != {stage_axis, data_axis}:
        raise PipelineError(
            f"The mesh has the axes {mesh.axis_names}; a pipeline needs {stage_axis!r} and {data_axis!r}, and no other."
        )
    if any(device.process_index != jax.process_index() for device in mesh.devices.flat):
        raise PipelineError(
            "The mesh has devices of other processes. A pipeline's stages are on devices of one process; the data axis "
            "goes on over the hosts if each makes a mesh of its own devices and jax_passing.init declares that axis."
        )
    for shape in plan.params_shapes:
        if not is_inexact(shape):
            raise PipelineError(f"There are parameters of {shape.dtype}: only those of floating point have gradients.")
    if microbatches < 1:
        raise PipelineError(f"microbatches is {microbatches}; there is at least one.")
    devices, stages = mesh.shape[stage_axis], len(plan.stages)
    if isinstance(schedule, str):
        schedule = _made(schedule, devices, stages, microbatches)
    if (schedule.stages, len(schedule.tasks), schedule.microbatches) != (stages, devices, microbatches):
        raise PipelineError(
            f"The schedule is for {schedule.stages} stages on {len(schedule.tasks)} devices and "
            f"{schedule.microbatches} microbatches; the plan has {stages} stages, the axis {stage_axis!r} {devices} "
            f"devices, and {microbatches} microbatches are asked for."
        )
    schedule.check()
    return Pipeline(plan, mesh, schedule, stage_axis, data_axis)


def _made(name: str, devices: int, stages: int, microbatches: int) -> Schedule:
    if name == "interleaved":
        if stages % devices:
            raise PipelineError(f"{stages} stages aren't a multiple of {devices} devices, which interleaving needs.")
        return interleaved(devices, microbatches, stages // devices)
    if name not in SCHEDULES:
        raise PipelineError(f"schedule is {name!r}; it may be 'interleaved', {', '.join(map(repr, SCHEDULES))}.")
    if stages != devices:
        raise PipelineError(
            f"The plan has {stages} stages and the mesh {devices} devices for them: the schedule {name!r} needs as "
            "many of each. Several stages on a device are 'interleaved'."
        )
    return SCHEDULES[name](devices, microbatches)
