"""`pipeline`: the stages of a plan at work at once, on a mesh of devices."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_passing.errors import PipelineError
from jax_passing.partitioning.plan import Plan, difference, sum_of
from jax_passing.partitioning.program import is_inexact, no_mesh
from jax_passing.partitioning.stages import Output, Piece
from jax_passing.pipelining.alike import agree, facts_of, refuse
from jax_passing.pipelining.jobs import check_job, check_jobs, member, processes_of
from jax_passing.pipelining.optimizer import Homes, by_stage
from jax_passing.pipelining.runner import Runner
from jax_passing.pipelining.schedule import Kind, Schedule, Task
from jax_passing.pipelining.schedules.gpipe import gpipe
from jax_passing.pipelining.schedules.interleaved import interleaved
from jax_passing.pipelining.schedules.one_f_one_b import one_f_one_b
from jax_passing.pipelining.schedules.zero_bubble import zb_h1
from jax_passing.pipelining.sending import elsewhere, is_here, mesh_of, put, send

SCHEDULES: Mapping[str, Callable[[int, int], Schedule]] = {"gpipe": gpipe, "1f1b": one_f_one_b, "zb-h1": zb_h1}


class Pipeline:
    """What `pipeline` returns: `pipeline(params, batch)` is shaped like `jax.value_and_grad` of the loss.

    Attributes:
      plan: of the model.
      mesh: of all devices.
      schedule: who does what when.
    """

    def __init__(
        self,
        plan: Plan,
        mesh: Mesh,
        schedule: Schedule,
        stage_axis: str,
        data_axis: str,
        specs: Sequence[PartitionSpec],
    ):
        """`specs`: by leaf of the parameters, along the mesh's other axes."""
        self.plan = plan
        self.mesh = mesh
        self.schedule = schedule
        self._axes = (stage_axis, data_axis)
        self._member = member(data_axis)
        axes = [axis for axis in mesh.axis_names if axis != stage_axis]
        rows = np.moveaxis(mesh.devices, mesh.axis_names.index(stage_axis), 0)
        columns = np.moveaxis(mesh.devices, mesh.axis_names.index(data_axis), 0)
        self._width = len(columns)
        self._columns = [number for number, column in enumerate(columns) if _is_here(column)]
        device_of = schedule.device_of
        self._runners = []
        for number, stage in enumerate(plan.stages):
            held = list(stage.held(plan.params_shapes).values())
            held_specs = [specs[piece.leaf] for piece in stage.pieces]
            row = Mesh(rows[device_of[number]], axes)
            self._runners.append(
                Runner(stage, held, held_specs, plan.batch_shapes, row, data_axis, schedule.microbatches)
            )
        # By leaf of the parameters, where the first stage is that uses it. The first one has those that nobody uses.
        homes = [self._runners[0]] * len(specs)
        for runner in reversed(self._runners):
            for piece in runner.passes.stage.pieces:
                homes[piece.leaf] = runner
        self._homes = [NamedSharding(runner.mesh, spec) for runner, spec in zip(homes, specs, strict=True)]
        self._params_homes = Homes(plan.params_tree, self._homes, [runner.same for runner in self._runners])
        self._spans_processes = not NamedSharding(mesh, PartitionSpec()).is_fully_addressable
        self._specs = specs
        spans = [span for device in schedule.timeline() for span in device]
        self._order = [span.task for span in sorted(spans, key=lambda span: span.begin_s)]

    def _compare(self) -> None:
        """`pipeline` calls this where the mesh spans several processes, in all of them.

        Raises PipelineError in all of them if they don't have the same pipeline, or if their sessions don't suit it.
        """
        passes = [runner.passes for runner in self._runners]
        facts = facts_of(self.plan, passes, self.mesh, self._axes, self.schedule, self._specs)
        check_jobs(self.mesh, *self._axes, agree(self.mesh, facts, self._member))

    def place(self, params: Any) -> Any:
        """The parameters, each on the devices of the (first) stage that uses it: a device holds its own stages' only.

        Rows of one array that several stages use stay together, on the first one's devices. Where the mesh spans
        several processes, all of them call this with the same parameters.
        """
        leaves = self.plan.leaves_of_params(params)
        placed = [put(leaf, home) for leaf, home in zip(leaves, self._homes, strict=True)]
        return jax.tree.unflatten(self.plan.params_tree, placed)

    def by_stage(self, optimizer: Any, *, max_norm: float | None = None) -> Any:
        """An optimiser of optax for parameters that `place` has distributed: a program for each stage's parameters.

            optimizer = step.by_stage(optax.adam(1e-3), max_norm=1.0)    # then as ever: init, update, flax's TrainState

        It computes what it would on one device, from the same tree of parameters. Where it looks at several stages'
        parameters (`optax.clip_by_global_norm`, `optax.apply_if_finite`), stages send each other numbers. The state is
        a list with that of each row of the mesh, in which None stands for what belongs to others' parameters.

        Args:
          optimizer: whatever has optax's `init` and `update`.
          max_norm: gradients whose norm over all stages is greater are scaled down to it first, as by
            `optax.clip_by_global_norm`; the norm is added up in float32.

        `init` and `update` raise PipelineError inside of jax.jit, and if the optimiser computes with arrays of several
        stages at once, or with a function (a line search).
        """
        return by_stage(optimizer, self._params_homes, max_norm)

    def global_norm(self, gradients: Any) -> jax.Array:
        """float32[], the norm of all gradients (or parameters) of all stages, as `optax.global_norm`."""
        with no_mesh():
            return self._params_homes.global_norm(gradients)

    def __call__(self, params: Any, batch: Any) -> tuple[Any, Any]:
        """The mean loss (and aux) of all microbatches on all devices, and its gradients.

        Args:
          params: as for the plan. They are moved to where they are needed; after `place` they are there. Where the mesh
            spans several processes they have to be placed.
          batch: like the plan's, for all microbatches and all places along the data axis where this process has
            devices: arrays with as many times the rows, or with a leading dimension for that (random keys, for
            example). Processes that have devices of different stages at the same places give the same batch.

        Returns:
          The loss, or (loss, aux); and the gradients, which lie where their parameters do. Of aux, what is of floating
          point is the mean, and anything else what the last microbatch has left.

        Raises PipelineError if the batch has other shapes, PartitionError if the parameters have.
        """
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((params, batch))):
            raise PipelineError(
                "A step of a pipeline is many programs on several devices, so it can't be inside of another program: "
                "call it outside of jax.jit, jax.grad, jax.vmap and jax.eval_shape."
            )
        with no_mesh():  # a stage's mesh isn't that of jax.set_mesh
            return self._value_and_grad(params, batch)

    def _value_and_grad(self, params: Any, batch: Any) -> tuple[Any, Any]:
        self._check_session()
        leaves = self.plan.leaves_of_params(params)
        if self._spans_processes:
            self._check_placed(leaves)
        batches = self._batches(batch)
        held = [self._held(runner, leaves) for runner in self._runners]
        run = _Run(self._runners, held, batches, self.schedule)
        for task in self._order:
            run.do(task)
        found = self._result(run), self._gradients(run, leaves)
        if self._spans_processes and self.mesh.devices.flat[0].platform == "cpu":
            # XLA has about as many threads as the process has devices, and a sum that waits for other processes keeps
            # some. If the next step's sends found none, the processes would wait for each other for ever.
            jax.block_until_ready(found)
        return found

    def _check_session(self) -> None:
        """It may have been opened, or closed, since `pipeline` looked at it."""
        if not self._spans_processes:
            check_job(self.mesh, *self._axes)
        elif member(self._axes[1]) != self._member:
            raise PipelineError(
                "This process isn't in the session, or not of the same rank, that it was in when pipeline was called. "
                "Where a mesh spans several processes, pipeline compares their sessions: call it in the session."
            )

    def _held(self, runner: Runner, leaves: Sequence[Any]) -> list[jax.Array]:
        """What a stage holds of the parameters, on its devices."""
        pieces = zip(runner.passes.stage.pieces, runner.held, strict=True)
        if not self._spans_processes:
            return [jax.device_put(piece.of(leaves[piece.leaf]), sharding) for piece, sharding in pieces]
        held = []
        for piece, sharding in pieces:
            leaf, home = leaves[piece.leaf], self._homes[piece.leaf]
            # JAX must not compute with an array that has no part here: it may end the process.
            own = piece.of(leaf) if is_here(home) else elsewhere(piece.of(self.plan.params_shapes[piece.leaf]), home)
            held += send([own], mesh_of(home), [sharding])
        return held

    def _check_placed(self, leaves: Sequence[Any]) -> None:
        for leaf, home in zip(leaves, self._homes, strict=True):
            if not isinstance(leaf, jax.Array) or leaf.sharding.device_set != home.device_set:
                raise PipelineError(
                    "The mesh spans several processes, and the parameters aren't on their stages' devices: call "
                    "params = step.place(params) before the first step, in every process."
                )

    def _batches(self, batch: Any) -> list[list[jax.Array]]:
        """By stage: the leaves that it looks at, [device, microbatch, ...]."""
        leaves, tree = jax.tree.flatten(batch)
        if tree != self.plan.batch_tree:
            raise PipelineError(
                f"This batch is of another structure than the plan's: {difference(tree, self.plan.batch_tree)}."
            )
        count = (len(self._columns), self.schedule.microbatches)
        arranged = [_arranged(leaf, shape, count) for leaf, shape in zip(leaves, self.plan.batch_shapes, strict=True)]
        return [
            [self._distributed(arranged[leaf], runner.differing) for leaf in runner.passes.stage.batch]
            for runner in self._runners
        ]

    def _distributed(self, array: Any, sharding: NamedSharding) -> jax.Array:
        """An array that has a row for each of this process's places along the data axis."""
        if not self._spans_processes:
            return jax.device_put(array, sharding)
        shape = (self._width, *array.shape[1:])
        pieces = []
        for device, index in sharding.addressable_devices_indices_map(shape).items():
            assert index is not None, "the sharding has an index for each device"
            first, _, _ = index[0].indices(self._width)
            row = self._columns.index(first)
            pieces.append(jax.device_put(array[row : row + 1], device))
        return jax.make_array_from_single_device_arrays(shape, sharding, pieces, dtype=array.dtype)

    def _result(self, run: "_Run") -> Any:
        left: list[tuple[Output, Any]] = []
        for runner, by_microbatch in zip(self._runners, run.outputs, strict=True):
            left += zip(runner.passes.stage.outputs, self._told(runner.results(by_microbatch), runner), strict=True)
        return self.plan.result(left)

    def _told(self, results: list[Any], runner: Runner) -> list[Any]:
        """What a stage has found out, for all devices of the mesh; if that spans processes, for each of them."""
        if not self._spans_processes:
            return jax.device_put(results, NamedSharding(self.mesh, PartitionSpec()))
        rows = dict.fromkeys(other.same for other in self._runners)
        copies = {row: send(results, runner.mesh, [row] * len(results)) for row in rows}
        return next(copy for row, copy in copies.items() if is_here(row))

    def _gradients(self, run: "_Run", leaves: Sequence[Any]) -> Any:
        """Each where its parameter lies; the stages that share a parameter send theirs there, where they are added."""
        parts: list[list[tuple[Piece, jax.Array]]] = [[] for _ in leaves]  # by leaf
        for runner, sums in zip(self._runners, run.sums, strict=True):
            for piece, gradient in zip(runner.passes.stage.pieces, sums, strict=True):
                parts[piece.leaf] += [(piece, one) for one in send([gradient], runner.mesh, [self._homes[piece.leaf]])]
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        gradients = []
        for leaf, own, shape, home in zip(leaves, parts, self.plan.params_shapes, self._homes, strict=True):
            wanted = leaf.sharding if isinstance(leaf, jax.Array) else everywhere
            # An array that has no part here mustn't meet one that has: JAX would end the process.
            gradients.append(put(sum_of(own, shape), wanted) if is_here(home) else elsewhere(shape, wanted))
        return jax.tree.unflatten(self.plan.params_tree, gradients)


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
        known = dict(zip((*passes.held, *passes.carried, *passes.batch), (*held, *carried, *batch), strict=True))
        known.update(zip(passes.kept, kept, strict=runner.is_here))
        needed = set(passes.whole.inputs)
        self._known[key] = {value: array for value, array in known.items() if value in needed}
        if stage + 1 < len(self._runners):
            self._carried[stage + 1, task.microbatch] = _sent(on, runner, self._runners[stage + 1])

    def _to_inputs(self, task: Task) -> None:
        runner, key = self._runners[task.stage], (task.stage, task.microbatch)
        passes, known = runner.passes, self._known[key]
        gradients, handed_over = runner.to_inputs(known, np.int32(task.microbatch))
        self._send_back(task, gradients)
        known.update(zip(passes.handed_over, handed_over, strict=runner.is_here))
        # What only this part needed goes.
        self._known[key] = {value: known[value] for value in passes.to_weights.inputs if value in known}

    def _add_gradients(self, task: Task) -> None:
        stage, runner, key = task.stage, self._runners[task.stage], (task.stage, task.microbatch)
        is_whole = task.kind is Kind.BACKWARD
        self._left[stage] -= 1
        self.sums[stage], rest = runner.add_gradients(
            is_whole, self._known.pop(key), np.int32(task.microbatch), self.sums[stage], self._left[stage] == 0
        )
        if is_whole:
            self._send_back(task, rest)

    def _send_back(self, task: Task, gradients: Sequence[Any]) -> None:
        if task.stage == 0:
            return
        before = self._runners[task.stage - 1]
        sent = _sent(gradients, self._runners[task.stage], before)
        self._known[task.stage - 1, task.microbatch].update(zip(before.passes.coming, sent, strict=True))


def _sent(arrays: Sequence[Any], runner: Runner, to: Runner) -> list[jax.Array]:
    return send(arrays, runner.mesh, [to.differing] * len(arrays))


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


def _is_here(devices: Any) -> bool:
    """Whether any of them is this process's."""
    return any(device.process_index == jax.process_index() for device in devices.flat)


def pipeline(
    plan: Plan,
    mesh: Mesh,
    *,
    microbatches: int,
    schedule: str | Schedule = "1f1b",
    stage_axis: str = "stage",
    data_axis: str = "data",
    param_specs: Any = None,
) -> Pipeline:
    """The loss of a plan and its gradients, computed by all devices of a mesh at once.

    Each stage is compiled for its own devices, the row of the mesh that it is on, and holds its own parameters,
    gradients and activations only. What the stages carry to each other is sent while they compute. Where a stage has
    the gradients of its last microbatch, they are summed over the data axis by `jax_passing.psum`, in buckets, while
    the other stages are still at work; over the hosts, too, if `jax_passing.init` declares the data axis. Without a
    session JAX sums them. The mesh may span the processes of `jax.distributed`: then each of them does what its own
    devices have to do (docs/train/pipelines.md).

    Args:
      plan: made by `jax_passing.partition` for the shapes of one microbatch of one place along the data axis.
      mesh: with both axes, and others if layers are to be sharded: along these JAX partitions each stage by itself.
      microbatches: how many each place along the data axis does in a step.
      schedule: "gpipe", "1f1b", "interleaved", "zb-h1", or a table that you have made. With "interleaved" the plan has
        a multiple of the stage axis's stages.
      stage_axis: name of the mesh's axis along which the stages are.
      data_axis: name of the axis along which the batch is.
      param_specs: pytree of `PartitionSpec`, or one for many leaves, as `in_specs` of `jax.shard_map`: how parameters
        lie along the mesh's other axes. Default: whole on each device.

    Raises PipelineError if the plan, the mesh and the schedule don't suit each other. Where the mesh spans several
    processes, also if these have different pipelines, or don't call this together: then all of them raise it.
    """
    spans_processes = processes_of(mesh) != [jax.process_index()]
    try:
        made = _made_here(plan, mesh, microbatches, schedule, (stage_axis, data_axis), param_specs)
    except Exception as error:
        if spans_processes:
            refuse(mesh, error)
        raise
    if spans_processes:
        made._compare()
    return made


def _made_here(
    plan: Plan,
    mesh: Mesh,
    microbatches: int,
    schedule: str | Schedule,
    axes: tuple[str, str],
    param_specs: Any,
) -> Pipeline:
    """Makes and checks what this process can by itself."""
    stage_axis, data_axis = axes
    if not {stage_axis, data_axis}.issubset(mesh.axis_names):
        raise PipelineError(
            f"The mesh has the axes {mesh.axis_names}; a pipeline needs {stage_axis!r} and {data_axis!r}."
        )
    if stage_axis == data_axis:
        raise PipelineError(f"stage_axis and data_axis are both {stage_axis!r}; the mesh has an axis for each.")
    specs = _specs_by_leaf(plan, param_specs)
    others = {axis: size for axis, size in mesh.shape.items() if axis not in (stage_axis, data_axis)}
    paths = jax.tree_util.tree_leaves_with_path(jax.tree.unflatten(plan.params_tree, plan.params_shapes))
    for (path, shape), spec in zip(paths, specs, strict=True):
        _check_spec(jax.tree_util.keystr(path) or "params", shape, spec, others)
    for stage in plan.stages:
        for piece in stage.pieces:
            if piece.rows is None:
                continue  # the whole leaf, as above
            _check_spec(piece.name, piece.of(plan.params_shapes[piece.leaf]), specs[piece.leaf], others)
    for shape in plan.params_shapes:
        if not is_inexact(shape):
            raise PipelineError(f"There are parameters of {shape.dtype}: only those of floating point have gradients.")
    if not isinstance(microbatches, int | np.integer) or microbatches < 1:
        raise PipelineError(f"microbatches is {microbatches!r}; it is a whole number, at least 1.")
    devices, stages = mesh.shape[stage_axis], len(plan.stages)
    if isinstance(schedule, str):
        schedule = _scheduled(schedule, devices, stages, microbatches)
    if (schedule.stages, len(schedule.tasks), schedule.microbatches) != (stages, devices, microbatches):
        raise PipelineError(
            f"The schedule is for {schedule.stages} stages on {len(schedule.tasks)} devices and "
            f"{schedule.microbatches} microbatches; the plan has {stages} stages, the axis {stage_axis!r} {devices} "
            f"devices, and {microbatches} microbatches are asked for."
        )
    schedule.check()
    check_job(mesh, stage_axis, data_axis)
    return Pipeline(plan, mesh, schedule, stage_axis, data_axis, specs)


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
        raise PipelineError(f"param_specs isn't a prefix of the tree of parameters: {error}") from None
    return specs


def _check_spec(name: str, shape: jax.ShapeDtypeStruct, spec: Any, sizes: Mapping[Any, int]) -> None:
    """`shape`: of what has this name, a parameter or a stage's rows of it. `sizes`: of the mesh's other axes."""
    if not isinstance(spec, PartitionSpec):
        raise PipelineError(f"param_specs has {spec!r} for {name}; it has to be a jax.sharding.PartitionSpec.")
    if len(spec) > len(shape.shape):
        raise PipelineError(f"{spec} in param_specs has {len(spec)} entries; {name} has the shape {shape.shape}.")
    for size, entry in zip(shape.shape, spec, strict=False):
        along = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        if not sizes.keys() >= set(along):
            raise PipelineError(
                f"{spec} in param_specs names {', '.join(repr(axis) for axis in along if axis not in sizes)}. "
                "Parameters lie along other axes than stages and data; this mesh has "
                f"{', '.join(map(repr, sorted(sizes))) or 'none'}."
            )
        parts = math.prod(sizes[axis] for axis in along)
        if size % parts:
            raise PipelineError(
                f"{spec} in param_specs cuts a dimension of {name}, which has the shape {shape.shape}, into {parts} "
                f"parts; {size} isn't a multiple of that."
            )


def _scheduled(name: str, devices: int, stages: int, microbatches: int) -> Schedule:
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
