"""How long a step takes on machines and networks that aren't here, on a virtual clock."""

from collections.abc import Sequence
from dataclasses import dataclass

from jax_passing.collective.planner import Cluster, Strategy, predict
from jax_passing.errors import PipelineError
from jax_passing.partitioning.plan import Plan, StageFacts
from jax_passing.pipelining.schedule import Durations, Schedule


@dataclass(frozen=True)
class SimulatedStep:
    """
    Attributes:
      time_s: until all is computed and summed.
      compute_s: until all is computed.
      work_s: of the device that has most of it. What `compute_s` is longer is its bubble.
      sums_s: of all gradients of a host.
    """

    time_s: float
    compute_s: float
    work_s: float
    sums_s: float

    @property
    def hidden(self) -> float:
        """The share of the sums that takes place while devices still compute."""
        return 1 - (self.time_s - self.compute_s) / self.sums_s if self.sums_s else 1.0


def simulate(
    plan: Plan,
    schedule: Schedule,
    cluster: Cluster,
    *,
    strategy: Strategy = "passing",
    dtype: str = "float32",
    stage_link_gbit: float | None = None,
    overlap: bool = True,
) -> SimulatedStep:
    """A training step without its optimiser: passes as the plan says, sums as `jax-passing plan` predicts.

    Each host has all stages, so that their sums share its link, one after the other in the order in which they may
    begin. Plain data parallelism is `interleaved(1, 1, stages)`: one device with all stages, which are then the buckets
    of gradients.

    Args:
      plan: its stages' times are those of its facts, so it should be measured, or have the `flops_per_s` of a device.
      schedule: for as many stages as the plan has.
      cluster: of the hosts that gradients are summed over.
      strategy: of the sums.
      dtype: of the sums.
      stage_link_gbit: rate of the links between neighbouring stages, each way; None: sending costs nothing.
      overlap: a stage's gradients are summed when its last backward pass is over. If False, when all is computed.

    Raises PipelineError if the schedule is for another number of stages.
    """
    if schedule.stages != len(plan.stages):
        raise PipelineError(f"The schedule is for {schedule.stages} stages; the plan has {len(plan.stages)}.")
    send_s = None
    if stage_link_gbit is not None:
        send_s = [facts.sent_bytes * 8 / (stage_link_gbit * 1e9) for facts in plan.facts[:-1]]
    spans = [span for device in schedule.timeline(_durations(plan.facts), send_s) for span in device]
    compute_s = max(span.end_s for span in spans)
    ready_s = [0.0] * schedule.stages
    work_s = [0.0] * len(schedule.tasks)
    for span in spans:
        ready_s[span.task.stage] = max(ready_s[span.task.stage], span.end_s)
        work_s[schedule.device_of[span.task.stage]] += span.end_s - span.begin_s
    end_s = sums_s = 0.0
    for ready, facts in sorted(zip(ready_s, plan.facts, strict=True), key=lambda pair: pair[0]):
        sum_s = predict(cluster, strategy, facts.params, dtype).time_s if facts.params else 0.0
        end_s = max(end_s, ready if overlap else compute_s) + sum_s
        sums_s += sum_s
    return SimulatedStep(max(end_s, compute_s), compute_s, max(work_s), sums_s)


def _durations(facts: Sequence[StageFacts]) -> list[Durations]:
    """A backward pass has two products for each product of the forward pass: one for inputs, one for weights."""
    backward_s = [one.compute_s - one.forward_s for one in facts]
    return [Durations(one.forward_s, back / 2, back / 2) for one, back in zip(facts, backward_s, strict=True)]
