"""Families of metrics are made here of their samples. It needs prometheus-client, so import it late."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

Samples = Iterable[tuple[Sequence[str], float]]  # the values of the labels, and the sample's own
Classes = Iterable[tuple[Sequence[str], Sequence[int], float]]  # the same, with the sum of all values


@dataclass(frozen=True)
class Maker:
    """Makes families whose names begin with `prefix`."""

    prefix: str

    def gauge(self, name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
        """Makes a family of values that go up and down."""
        return _filled(GaugeMetricFamily(f"{self.prefix}_{name}", text, labels=labels), samples)

    def counter(self, name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
        """Makes a family of values that only grow; their names get the ending "_total"."""
        return _filled(CounterMetricFamily(f"{self.prefix}_{name}", text, labels=labels), samples)

    def histogram(self, name: str, text: str, labels: Sequence[str], ends: Sequence[float], classes: Classes) -> Metric:
        """Makes a family of how many values were in each class: up to one of `ends`, or above the last."""
        family = HistogramMetricFamily(f"{self.prefix}_{name}", text, labels=labels)
        for values, counts, total in classes:
            bounds = [*(f"{end:g}" for end in ends), "+Inf"]
            upto = itertools.accumulate(counts)
            family.add_metric(values, list(zip(bounds, map(float, upto), strict=True)), total)
        return family


def _filled(family: Any, samples: Samples) -> Metric:
    for labels, value in samples:
        family.add_metric(labels, value)
    return family
