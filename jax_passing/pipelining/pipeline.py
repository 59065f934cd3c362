"""`pipeline` runs the stages of a plan at the same time, on a mesh of devices."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_passing.errors import UsageError
from jax_passing.host.processes import refusals_told
from jax_passing.partitioning.arrays import no_mesh
from jax_passing.partitioning.plan import Plan
from jax_passing.partitioning.stages import Output
from jax_passing.pipelining.agreement import WHAT, agree, agree_on_scale, facts_of
from jax_passing.pipelining.arguments import check_axes, checked_schedule, checked_specs
from jax_passing.pipelining.batches import Batches
from jax_passing.pipelining.homes import Homes
from jax_passing.pipelining.jobs import check_job, check_jobs, processes_of, session_info
from jax_passing.pipelining.loss_scale import scale_of
from jax_passing.pipelining.optimizer import stagewise_optimizer
from jax_passing.pipelining.runner import Runner
from jax_passing.pipelining.schedule import Kind, Schedule
from jax_passing.pipelining.sending import is_here, send
from jax_passing.pipelining.step import Step


class Pipeline:
    """Computes what `jax.value_and_grad` of a plan's loss does, on all devices of a mesh: `pipeline` makes it.

    Attributes:
      plan: the plan of the model.
      mesh: all devices.
      schedule: the order in which each device does its tasks.
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
        self._specs = specs
        self._session_info = session_info(data_axis)
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        self._spans_processes = not self._everywhere.is_fully_addressable
        rows = np.moveaxis(mesh.devices, mesh.axis_names.index(stage_axis), 0)
        row_axes = [axis for axis in mesh.axis_names if axis != stage_axis]
        device_of = schedule.device_of
        self._runners = []
        for number, stage in enumerate(plan.stages):
            held = list(stage.held(plan.params_shapes).values())
            held_specs = [specs[piece.leaf] for piece in stage.pieces]
            row = Mesh(rows[device_of[number]], row_axes)
            self._runners.append(
                Runner(stage, held, held_specs, plan.batch_shapes, row, data_axis, schedule.microbatches)
            )
        self._homes = Homes(plan, mesh, self._runners, specs)
        self._batches = Batches(plan, mesh, data_axis, schedule.microbatches)
        spans = [span for device in schedule.timeline() for span in device]
        self._tasks = [span.task for span in sorted(spans, key=lambda span: span.begin_s)]

    def _compare(self) -> None:
        """Compares this pipeline with those of the other processes that the mesh spans, which all call this.

        Raises UsageError in all of them if they don't have the same pipeline, or if their sessions don't suit it.
        """
        passes = [runner.passes for runner in self._runners]
        facts = facts_of(self.plan, passes, self.mesh, self._axes, self.schedule, self._specs)
        check_jobs(self.mesh, *self._axes, agree(self.mesh, facts, self._session_info))

    def place(self, params: Any) -> Any:
        """Puts each parameter on the devices of the (first) stage that uses it: a device holds its own stages' only.

        Rows of one array that several stages use stay together, on the first one's devices. Where the mesh spans
        several processes, all of them call this with the same parameters.
        """
        return self._homes.place(params)

    def init(self, init_fn: Callable[..., Any], *args: Any) -> Any:
        """Makes parameters where `place` would put them, without the whole model anywhere.

            params = step.init(lambda key: model.init(key, x)["params"], jax.random.key(0))

        Each stage's devices compute only the parameters that lie there. They are those of `jax.jit(init_fn)(*args)`.
        Where the mesh spans several processes, all of them call this with the same arguments.

        Args:
          init_fn: a pure function that returns parameters like the plan's.
          args: pytrees of arrays, such as a random key.

        Raises UsageError if the parameters have other shapes.
        """
        _check_outside((), args)
        with no_mesh():
            return self._homes.init(init_fn, args)

    @property
    def abstract_params(self) -> Any:
        """Returns the parameters as `jax.ShapeDtypeStruct`, each with the sharding that `place` gives it.

            params = step.place(ocp.StandardCheckpointer().restore(path, step.abstract_params))    # ocp: orbax

        Where the mesh spans several processes, `...` stands for parameters of other processes' stages. With
        `ocp.args.PyTreeRestore` orbax then leaves them out, and `place` knows where they are.
        """
        return self._homes.abstract

    def by_stage(self, optimizer: Any, *, max_norm: float | None = None) -> Any:
        """Makes an optax optimiser for parameters that `place` has distributed: a program for each stage's parameters.

            optimizer = step.by_stage(optax.adam(1e-3), max_norm=1.0)    # then as ever: init, update, flax's TrainState

        It computes the same as on one device, from the same tree of parameters, in which None stands for frozen ones.
        Where it looks at several stages' parameters (`optax.clip_by_global_norm`, `optax.apply_if_finite`), stages send
        each other numbers. The state is a list with the state of each row of the mesh, in which None stands for what
        belongs to other rows' parameters.

        Args:
          optimizer: any object with optax's `init` and `update`.
          max_norm: gradients whose norm over all stages is greater are first scaled down to it, as by
            `optax.clip_by_global_norm`; the norm is added up in float32.

        `init` and `update` raise UsageError inside of jax.jit, and if the optimiser computes with arrays of several
        stages at once, or with a function (as a line search does).
        """
        return stagewise_optimizer(optimizer, self._homes, max_norm)

    def global_norm(self, gradients: Any) -> jax.Array:
        """Returns float32[], the norm of all gradients (or parameters) of all stages, as `optax.global_norm` does."""
        with no_mesh():
            return self._homes.global_norm(gradients)

    def __call__(self, params: Any, batch: Any) -> tuple[Any, Any]:
        """Computes the mean loss (and aux) of all microbatches on all devices, and its gradients.

        Args:
          params: parameters like the plan's. They are moved to where they are needed; after `place` they are there.
            Where the mesh spans several processes they have to be placed.
          batch: a batch like the plan's, for all microbatches and all indices of the data axis where this process has
            devices: arrays with as many times the rows, or with a leading dimension for that (random keys, for
            example). Processes that have devices of different stages at the same index give the same batch.

        Returns:
          The loss, or (loss, aux); and the gradients, which lie where their parameters do, with None for frozen ones.
          Floating-point values of aux are means; any other value is that of the last microbatch.

        Raises UsageError if the batch or the parameters have other shapes.
        """
        _check_outside(params, batch)
        with no_mesh():  # a stage has a mesh of its own, whatever jax.set_mesh has set
            return self._value_and_grad(params, batch)

    def scaled(self, scale: Any, params: Any, batch: Any) -> tuple[Any, bool, Any, Any]:
        """Computes a step in which the loss is multiplied by a dynamic scale, so that float16 doesn't lose gradients.

            scale, is_finite, value, gradients = step.scaled(scale, params, batch)

        The gradients are those of the loss itself: they are divided by the scale when those of all microbatches have
        been added up. As Flax's, they are float32 if their parameters are narrower, whose dtype would lose them again.
        Moments of such parameters become float32 in an optimiser's first update, which `optax.apply_if_finite` refuses:
        there, skip a step by an `if is_finite` of your own.

        Args:
          scale: a `DynamicScale` of Flax, or a loss scale of jmp.
          params: as for a step.
          batch: as for a step.

        Returns:
          The scale for the next step; whether all gradients of all stages are finite, the same in all processes, for
          which this waits; and then what a step returns.

        Raises UsageError as a step does, and if the scale is something else; where the mesh spans several processes, on
        all of them if their scales differ.
        """
        _check_outside(params, batch)
        factor, adjusted = scale_of(scale)
        with no_mesh():
            value, gradients = self._value_and_grad(params, batch, factor)
        is_finite = self.all_finite(gradients)
        if self._spans_processes:  # by now all of them have done the step, so none waits long for another
            agree_on_scale(self.mesh, factor)
        return adjusted(is_finite), is_finite, value, gradients

    def all_finite(self, gradients: Any) -> bool:
        """Tells whether all gradients of all stages are finite; the same in all processes. It waits for them."""
        with no_mesh():
            return bool(np.asarray(self._homes.all_finite(gradients).addressable_data(0)))

    def evaluate(self, params: Any, batch: Any) -> Any:
        """Computes the loss (and aux) of each microbatch by forward passes alone: nothing is kept, or differentiated.

            losses, aux = step.evaluate(params, batch)
            logits = aux["logits"].reshape(-1, vocabulary)     # that has_aux returns, in the order of the rows

        Args:
          params: as for a step.
          batch: as for a step.

        Returns:
          The loss, or (loss, aux), in which each array has a leading dimension: for the microbatches of all indices of
          the data axis of the mesh, in the order of the batch. Other hosts' aren't among them: sum over the hosts what
          is meant for all (`jax_passing.process_sum`).

        Raises UsageError as a step does.
        """
        _check_outside(params, batch)
        with no_mesh():
            step, _ = self._begin(params, batch, is_training=False)
            for task in self._tasks:
                if task.kind is Kind.FORWARD:
                    step.do(task)
            outputs: list[Output] = []
            arrays: list[Any] = []
            for runner, by_microbatch in zip(self._runners, step.outputs, strict=True):
                outputs += runner.passes.stage.outputs
                arrays += self._shared(runner.all_results(by_microbatch), runner)
            found = jax.vmap(lambda own: self.plan.result(list(zip(outputs, own, strict=True))))(arrays)
            return self._awaited(found)

    def _awaited(self, found: Any) -> Any:
        if self._spans_processes and self.mesh.devices.flat[0].platform == "cpu":
            # XLA has about as many threads as the process has devices, and a sum that waits for other processes keeps
            # some. If the next step's sends found none, the processes would wait for each other for ever.
            jax.block_until_ready(found)
        return found

    def _value_and_grad(self, params: Any, batch: Any, scale: float | None = None) -> tuple[Any, Any]:
        step, leaves = self._begin(params, batch, is_training=True, scale=scale)
        for task in self._tasks:
            step.do(task)
        gradients = self._homes.gradients(step.sums, leaves, is_wide=scale is not None)
        return self._awaited((self._result(step), gradients))

    def _begin(
        self, params: Any, batch: Any, *, is_training: bool, scale: float | None = None
    ) -> tuple[Step, list[Any]]:
        """Returns a step of which no task is done yet, and the leaves of the parameters."""
        self._check_session()
        leaves = self.plan.leaves_of_params(params)
        self._homes.check_placed(leaves)
        batches = self._batches.by_stage(batch, self._runners)
        held = [self._homes.held_by(runner, leaves) for runner in self._runners]
        step = Step(self._runners, held, batches, self.schedule, is_training=is_training, scale=scale)
        return step, leaves

    def _check_session(self) -> None:
        """Checks the session again, which may have been opened or closed since `pipeline` looked at it."""
        if not self._spans_processes:
            check_job(self.mesh, *self._axes)
        elif session_info(self._axes[1]) != self._session_info:
            raise UsageError(
                "This process has another session, or another rank in it, than when pipeline was called. Where a mesh "
                "spans several processes, pipeline compares their sessions: call pipeline after jax_passing.init, and "
                "keep the session open while the pipeline is used."
            )

    def _result(self, step: Step) -> Any:
        outputs: list[tuple[Output, Any]] = []
        for runner, by_microbatch in zip(self._runners, step.outputs, strict=True):
            results = self._shared(runner.results(by_microbatch), runner)
            outputs += zip(runner.passes.stage.outputs, results, strict=True)
        return self.plan.result(outputs)

    def _shared(self, results: list[Any], runner: Runner) -> list[Any]:
        """Copies a stage's results to all devices of the mesh; if it spans processes, to a row of each process."""
        if not self._spans_processes:
            return jax.device_put(results, self._everywhere)
        copies = {row: send(results, runner.mesh, [row] * len(results)) for row in self._homes.rows}
        return next(copy for row, copy in copies.items() if is_here(row))


def _check_outside(params: Any, batch: Any) -> None:
    """Raises UsageError inside of a program."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((params, batch))):
        raise UsageError(
            "A step of a pipeline is many programs on several devices, so it can't be inside of another program: "
            "call it outside of jax.jit, jax.grad, jax.vmap and jax.eval_shape."
        )


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
    """Makes a function that computes the loss of a plan and its gradients on all devices of a mesh at once.

    Each stage is compiled for its own devices, the row of the mesh that it is on, and holds its own parameters,
    gradients and activations only. Stages send each other arrays while they compute. When a stage has the gradients of
    its last microbatch, `jax_passing.psum` sums them over the data axis, in buckets, while the other stages are still
    at work; over the hosts, too, if `jax_passing.init` declares the data axis. Without a session JAX sums them. The
    mesh may span the processes of `jax.distributed`: then each process does the tasks of its own devices
    (docs/train/pipelines.md).

    Args:
      plan: made by `jax_passing.partition` for the shapes of one microbatch at one index of the data axis.
      mesh: has both axes, and may have others along which layers are to be sharded: along these JAX partitions each
        stage by itself.
      microbatches: how many microbatches each index of the data axis does in a step.
      schedule: "gpipe", "1f1b", "interleaved", "zb-h1", or a table that you have made. With "interleaved" the number of
        the plan's stages is a multiple of the stage axis's size.
      stage_axis: name of the mesh's axis along which the stages are.
      data_axis: name of the axis along which the batch is.
      param_specs: pytree of `PartitionSpec`, or one for many leaves, as `in_specs` of `jax.shard_map`: how parameters
        lie along the mesh's other axes. Default: whole on each device.

    Raises UsageError if the plan, the mesh and the schedule don't suit each other. Where the mesh spans several
    processes, all of them raise it also if they have different pipelines, or don't call this together.
    """
    processes = processes_of(mesh)
    with refusals_told(WHAT, processes):
        check_axes(mesh, stage_axis, data_axis)
        specs = checked_specs(plan, mesh, (stage_axis, data_axis), param_specs)
        schedule = checked_schedule(plan, mesh, stage_axis, microbatches, schedule)
        check_job(mesh, stage_axis, data_axis)
        made = Pipeline(plan, mesh, schedule, stage_axis, data_axis, specs)
    if processes != [jax.process_index()]:
        made._compare()
    return made
