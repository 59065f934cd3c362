"""Does one step of a pipeline: the tasks of all stages."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jax_passing.pipelining.runner import Runner
from jax_passing.pipelining.schedule import Kind, Schedule, Task
from jax_passing.pipelining.sending import send


class Step:
    """Does the tasks of one step, and keeps what they hand to each other.

    Attributes:
      sums: by stage, the sums of the gradients of what it holds.
      outputs: by stage and microbatch, the outputs that the stage has returned.
    """

    def __init__(
        self,
        runners: Sequence[Runner],
        held: Sequence[Any],
        batches: Sequence[Any],
        schedule: Schedule,
        *,
        is_training: bool,
        scale: float | None = None,
    ) -> None:
        """`held`, `batches`: by stage, the pieces of parameters, and the leaves of the batch. `is_training`: whether
        there are backward passes, for which forward ones keep arrays. `scale`: that of the loss in these, if it has
        one; then gradients are in float32 if their parameters are narrower."""
        self._is_training = is_training
        self._runners = runners
        self._held = held
        self._batches = batches
        self.sums = [runner.zeros() if is_training else [] for runner in runners]
        self._is_scaled = scale is not None
        self._scales = [runner.scale(1.0 if scale is None else scale) for runner in runners] if is_training else []
        self.outputs: list[list[Any]] = [[None] * schedule.microbatches for _ in runners]
        self._carried: dict[tuple[int, int], Any] = {}  # by stage that takes the arrays, and microbatch
        self._known: dict[tuple[int, int], dict[int, Any]] = {}  # by stage and microbatch, values of its backward pass
        # By stage, microbatches whose gradients aren't added yet.
        self._missing = [schedule.microbatches] * len(runners)

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
        number = np.int32(task.microbatch)
        carried_on, outputs, kept = runner.forward(held, carried, batch, number, keeps=self._is_training)
        self.outputs[stage][task.microbatch] = outputs
        passes = runner.passes
        if self._is_training:
            known = dict(zip((*passes.held, *passes.carried, *passes.batch), (*held, *carried, *batch), strict=True))
            known.update(zip(passes.kept, kept, strict=runner.is_here))
            known.update(dict.fromkeys(passes.scale, self._scales[stage]))
            needed = set(passes.whole.inputs)
            self._known[key] = {value: array for value, array in known.items() if value in needed}
        if stage + 1 < len(self._runners):
            self._carried[stage + 1, task.microbatch] = _sent(carried_on, runner, self._runners[stage + 1])

    def _to_inputs(self, task: Task) -> None:
        runner, key = self._runners[task.stage], (task.stage, task.microbatch)
        passes, known = runner.passes, self._known[key]
        gradients, handed_over = runner.to_inputs(known, np.int32(task.microbatch))
        self._send_back(task, gradients)
        known.update(zip(passes.handed_over, handed_over, strict=runner.is_here))
        # Values that only this part of the backward pass needed are dropped.
        self._known[key] = {value: known[value] for value in passes.to_weights.inputs if value in known}

    def _add_gradients(self, task: Task) -> None:
        stage, runner, key = task.stage, self._runners[task.stage], (task.stage, task.microbatch)
        is_whole = task.kind is Kind.BACKWARD
        self._missing[stage] -= 1
        known, number, is_last = self._known.pop(key), np.int32(task.microbatch), self._missing[stage] == 0
        self.sums[stage], rest = runner.add_gradients(
            is_whole,
            known,
            number,
            self.sums[stage],
            self._scales[stage],
            is_last=is_last,
            is_wide=self._is_scaled,
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
