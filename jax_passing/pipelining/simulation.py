"""`simulate` predicts how long a step takes on machines and networks that aren't here, on a virtual clock."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jax_passing.collective.primitives.buckets import DEFAULT_BUCKET_BYTES, Leaf, make_buckets
from jax_passing.errors import UsageError
from jax_passing.partitioning.arrays import bytes_of
from jax_passing.partitioning.plan import Plan, StageFacts
from jax_passing.pipelining.schedule import Durations, Schedule
from jax_passing.predict.cluster import Cluster
from jax_passing.predict.sums import Strategy, predict
from jax_passing.predict.timeline import BucketSum, Timeline, place


@dataclass(frozen=True)
class SimulatedStep(Timeline):
    """A simulated step: its times until all is computed and summed (`time_s`), until all is computed (`compute_s`), and
    of all sums of a host (`sums_s`).

    Attributes:
      work_s: time for which the device with most work computes. `compute_s` is longer by this device's bubble.
    """

    work_s: float


def simulate(
    plan: Plan,
    schedule: Schedule,
    cluster: Cluster,
    *,
    strategy: Strategy = "passing",
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    stage_link_gbit: float | None = None,
    overlap: bool = True,
) -> SimulatedStep:
    """Simulates a training step without its optimiser: passes take as long as the plan says, and sums as long as
    `jax-passing plan` predicts.

    A gradient is final when the last backward pass of its stage is over, or of all stages of the device that use the
    parameter. A bucket is summed when all of its gradients are final. Each host has all stages, so that buckets share
    its link, one after the other in the order in which they are complete. Where sums use the cores that hosts compute
    on (`Cluster.shared_cores`), computation stands still for as long as the sums beside it need these cores.

    Plain data parallelism is `interleaved(1, 1, stages)`: one device with all stages. The more stages the plan has, the
    more exactly the times are known at which gradients are final.

    Args:
      plan: has the stages' times, so it should be measured, or made with the `flops_per_s` of a device.
      schedule: a schedule for as many stages as the plan has.
      cluster: the hosts that gradients are summed over.
      strategy: strategy of the sums.
      bucket_bytes: size of the sums' buckets, as for `psum`.
      stage_link_gbit: rate of the links between neighbouring stages, each way; None: sending costs nothing.
      overlap: whether a bucket is summed when it is complete, or when all is computed.

    Raises UsageError if the schedule is for another number of stages.
    """
    if schedule.stages != len(plan.stages):
        raise UsageError(f"The schedule is for {schedule.stages} stages; the plan has {len(plan.stages)}.")
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
    sums = []
    for bucket in _buckets(plan, schedule, ready_s, bucket_bytes):
        sum_ = predict(cluster, strategy, bucket.elements, bucket.dtype)
        sums.append(BucketSum(bucket.ready_s, sum_.time_s, sum_.shared_processors_s))
    placed = place(compute_s, sums, overlap)
    return SimulatedStep(placed.time_s, placed.compute_s, placed.sums_s, max(work_s))


@dataclass(frozen=True)
class _Bucket:
    """Describes gradients that are summed together. `ready_s`: when the last of them is final."""

    ready_s: float
    elements: int
    dtype: str


def _buckets(plan: Plan, schedule: Schedule, ready_s: Sequence[float], bucket_bytes: int) -> list[_Bucket]:
    """Returns the buckets of a host. `ready_s`: by stage, when its last backward pass is over."""
    buckets = []
    for device in range(len(schedule.tasks)):
        final_s: dict[int, float] = {}  # by leaf of the parameters
        pieces = {}
        for stage, home in schedule.device_of.items():
            trained = (piece for piece in plan.stages[stage].pieces if piece.is_trained)
            for piece in trained if home == device else ():
                final_s[piece.leaf] = max(ready_s[stage], final_s.get(piece.leaf, 0.0))
                pieces[piece] = piece.of(plan.params_shapes[piece.leaf])
        leaves = [Leaf(shape.dtype.name, int(bytes_of(shape)), piece.name) for piece, shape in pieces.items()]
        elements = [math.prod(shape.shape) for shape in pieces.values()]
        ends_s = [final_s[piece.leaf] for piece in pieces]
        for indices in make_buckets(leaves, bucket_bytes):
            total = sum(elements[index] for index in indices)
            buckets.append(_Bucket(max(ends_s[index] for index in indices), total, str(leaves[indices[0]].dtype)))
    return buckets


def _durations(facts: Sequence[StageFacts]) -> list[Durations]:
    """Halves backward passes: they have two products for each of the forward pass, one for inputs, one for weights."""
    backward_s = [one.compute_s - one.forward_s for one in facts]
    return [Durations(one.forward_s, back / 2, back / 2) for one, back in zip(facts, backward_s, strict=True)]
