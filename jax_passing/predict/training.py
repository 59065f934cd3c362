"""Predicts training in data parallel: how long a step takes, and how many rows a second a cluster trains."""

import math
from dataclasses import dataclass, field

from jax_passing.errors import ConfigError
from jax_passing.predict import timeline
from jax_passing.predict.models import Model
from jax_passing.predict.pace import Pace, Stragglers, mean_step_s
from jax_passing.predict.sums import Costs


@dataclass(frozen=True, kw_only=True)
class Training:
    """Describes a training.

    Attributes:
      model: its computation and gradients.
      rows: images, or sequences of 1024 tokens, in the batch of each device.
      flops_per_s: floating-point operations a second that a device reaches.
      overlap: whether sums travel while the backward pass goes on.
      pace: how often hosts wait for each other.
      stragglers: hosts that are slow.
    """

    model: Model
    rows: int = 32
    flops_per_s: float = 10e12
    overlap: bool = True
    pace: Pace = field(default_factory=Pace)
    stragglers: Stragglers = field(default_factory=Stragglers)

    def __post_init__(self) -> None:
        if self.rows < 1 or not 0 < self.flops_per_s < math.inf:
            raise ConfigError(
                f"Training needs rows (1 or more, not {self.rows}), and flops_per_s (above 0 and finite, not "
                f"{self.flops_per_s})."
            )


@dataclass(frozen=True)
class PredictedTraining:
    """Training with one way to sum.

    Attributes:
      costs: those of the way.
      compute_s: time for which a device computes in a step, if it isn't slow.
      sums_s: time that all sums of a step take by themselves.
      step_s: time of a step, on average.
      rows_per_s: images or sequences a second, of all devices together.
    """

    costs: Costs
    compute_s: float
    sums_s: float
    step_s: float
    rows_per_s: float

    @property
    def efficiency(self) -> float:
        """Returns the throughput over that of as many devices that never wait."""
        return self.compute_s / self.step_s


def train(training: Training, costs: Costs) -> PredictedTraining:
    """Predicts training with one way to sum, without the optimiser's update."""
    compute_s = training.model.flops * training.rows / training.flops_per_s
    slowest_s = compute_s * (training.stragglers.slowdown if training.stragglers.hosts else 1.0)
    sums = [
        timeline.BucketSum(slowest_s * bucket.ready, costs.of(bucket.size_bytes).time_s)
        for bucket in training.model.buckets
    ]
    synchronous = timeline.place(slowest_s, sums, training.overlap)
    hosts = costs.cluster.hosts
    step_s = mean_step_s(training.pace, hosts, training.stragglers, compute_s, synchronous.time_s, synchronous.sums_s)
    rows = training.rows * hosts * costs.cluster.devices_per_host
    return PredictedTraining(costs, compute_s, synchronous.sums_s, step_s, rows / step_s)
