"""A `Schedule` lists the tasks of each device of a pipeline in their order, as a table to print, draw and check."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from jax_passing.errors import UsageError


class Kind(Enum):
    """Lists the kinds of work that a stage does with a microbatch.

    A backward pass is one task, or two: INPUTS makes the gradients of the arrays that came from the stage before, which
    waits for them; WEIGHTS makes those of the parameters, for which no stage waits, some time later (Qi et al., Zero
    Bubble Pipeline Parallelism, ICLR 2024).
    """

    FORWARD = "F"
    BACKWARD = "B"
    INPUTS = "I"
    WEIGHTS = "W"


@dataclass(frozen=True)
class Task:
    kind: Kind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind.value}{self.stage}.{self.microbatch}"


@dataclass(frozen=True)
class Durations:
    """Says how long a stage's tasks take for a microbatch; a whole backward pass takes as long as both parts."""

    forward_s: float = 1.0
    inputs_s: float = 1.0
    weights_s: float = 1.0

    def of(self, kind: Kind) -> float:
        match kind:
            case Kind.FORWARD:
                return self.forward_s
            case Kind.INPUTS:
                return self.inputs_s
            case Kind.WEIGHTS:
                return self.weights_s
            case Kind.BACKWARD:
                return self.inputs_s + self.weights_s


@dataclass(frozen=True)
class Span:
    """Says when a task runs."""

    task: Task
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Schedule:
    """Lists the tasks of all devices in a step.

    Attributes:
      name: name of the kind of schedule.
      stages: number of stages.
      microbatches: number of microbatches.
      tasks: by device, its tasks in order.
    """

    name: str
    stages: int
    microbatches: int
    tasks: tuple[tuple[Task, ...], ...]

    @property
    def device_of(self) -> dict[int, int]:
        """Returns the device of each stage."""
        return {task.stage: device for device, tasks in enumerate(self.tasks) for task in tasks}

    def check(self) -> None:
        """Raises UsageError unless every stage has one forward and one backward pass of every microbatch, and no
        device waits for ever."""
        counts = Counter(task for tasks in self.tasks for task in tasks)
        homes = {(task.stage, device) for device, tasks in enumerate(self.tasks) for task in tasks}
        if len(homes) != self.stages:
            raise UsageError(f"The schedule {self.name} needs each of {self.stages} stages on exactly one device.")
        for stage in range(self.stages):
            for microbatch in range(self.microbatches):
                forward, whole, inputs, weights = (counts.pop(Task(kind, stage, microbatch), 0) for kind in Kind)
                if forward != 1 or (whole, inputs, weights) not in ((1, 0, 0), (0, 1, 1)):
                    raise UsageError(
                        f"The schedule {self.name} has {forward} forward passes of stage {stage} with microbatch "
                        f"{microbatch}, {whole} whole backward passes, and {inputs} first and {weights} second parts "
                        "of one: there must be one forward pass, and one backward pass, whole or in both parts."
                    )
        if counts:
            raise UsageError(
                f"The schedule {self.name} has tasks of stages or microbatches that don't exist: "
                f"{', '.join(map(str, counts))}."
            )
        self.timeline()

    def timeline(
        self, durations: Sequence[Durations] | None = None, send_s: Sequence[float] | None = None
    ) -> list[list[Span]]:
        """Returns by device when each task runs, if each begins as soon as its device and its inputs are there.

        Args:
          durations: by stage; by default each part takes one second.
          send_s: by stage, how long sending to the next stage takes, and sending gradients back; by default no time.
        """
        durations = durations or [Durations()] * self.stages
        send_s = send_s or [0.0] * (self.stages - 1)
        ends: dict[Task, float] = {}
        spans: list[list[Span]] = [[] for _ in self.tasks]
        is_moving = True
        while is_moving:
            is_moving = False
            for done, tasks in zip(spans, self.tasks, strict=True):
                while len(done) < len(tasks) and all(
                    any(one in ends for one in either) for either in self._awaited(tasks[len(done)])
                ):
                    task = tasks[len(done)]
                    awaited = [one for either in self._awaited(task) for one in either if one in ends]
                    arrivals_s = [
                        ends[one] + (send_s[min(one.stage, task.stage)] if one.stage != task.stage else 0.0)
                        for one in awaited
                    ]
                    begin_s = max([*arrivals_s, done[-1].end_s if done else 0.0])
                    ends[task] = begin_s + durations[task.stage].of(task.kind)
                    done.append(Span(task, begin_s, ends[task]))
                    is_moving = True
        stuck = [tasks[len(done)] for done, tasks in zip(spans, self.tasks, strict=True) if len(done) < len(tasks)]
        if stuck:
            raise UsageError(f"The schedule {self.name} is stuck before {', '.join(map(str, stuck))}.")
        return spans

    def _awaited(self, task: Task) -> list[tuple[Task, ...]]:
        """Returns groups of tasks: one task of each group has to be over before `task` begins."""
        stage, microbatch = task.stage, task.microbatch
        match task.kind:
            case Kind.FORWARD:
                return [(Task(Kind.FORWARD, stage - 1, microbatch),)] if stage > 0 else []
            case Kind.WEIGHTS:
                return [(Task(Kind.INPUTS, stage, microbatch),)]
            case Kind.INPUTS | Kind.BACKWARD:
                gradients = tuple(Task(kind, stage + 1, microbatch) for kind in (Kind.INPUTS, Kind.BACKWARD))
                own = [(Task(Kind.FORWARD, stage, microbatch),)]
                return own + ([gradients] if stage + 1 < self.stages else [])

    def bubble(self, durations: Sequence[Durations] | None = None) -> float:
        """Returns the time until all is done, divided by the work of the device that has most, minus 1."""
        spans = self.timeline(durations)
        work_s = max(sum(span.end_s - span.begin_s for span in device) for device in spans)
        return max(device[-1].end_s for device in spans if device) / work_s - 1

    def __str__(self) -> str:
        """Returns a line for each device, with a column for each second of a timeline in which each part takes one."""
        width = max(len(str(task)) for tasks in self.tasks for task in tasks) + 1
        lines = [f"{self.name}: {self.stages} stages, {self.microbatches} microbatches, bubble {self.bubble():.3f}"]
        for device, spans in enumerate(self.timeline()):
            line, at = "", 0.0
            for span in spans:
                line += " " * (width * round(span.begin_s - at))
                line += str(span.task).ljust(width * round(span.end_s - span.begin_s))
                at = span.end_s
            lines.append(f"  device {device}: {line}".rstrip())
        return "\n".join(lines)

    def plot(self, durations: Sequence[Durations] | None = None) -> Any:
        """Draws a Figure of matplotlib, which has to be installed: a row for each device, time from left to right."""
        from matplotlib.figure import Figure

        colours = {"F": "tab:blue", "B": "tab:green", "I": "tab:olive", "W": "tab:orange"}
        figure = Figure(figsize=(10, 1 + 0.5 * len(self.tasks)), layout="constrained")
        axes = figure.subplots()
        for device, spans in enumerate(self.timeline(durations)):
            for span in spans:
                length_s = span.end_s - span.begin_s
                colour = colours[span.task.kind.value]
                axes.barh(device, length_s, left=span.begin_s, color=colour, edgecolor="white")
                axes.text(span.begin_s + length_s / 2, device, str(span.task.microbatch), ha="center", va="center")
        axes.invert_yaxis()
        axes.set_yticks(range(len(self.tasks)), [f"device {device}" for device in range(len(self.tasks))])
        axes.set_xlabel("seconds")
        axes.set_title(f"{self.name}: bubble {self.bubble(durations):.3f}")
        return figure
