"""The switch remembers for some minutes how fast jobs were and whom they waited for: a page shows it."""

import statistics
from collections import deque
from typing import NamedTuple

from jax_passing.switch.jobs.epochs import Epoch
from jax_passing.switch.jobs.recent import SAMPLE_S, Counted
from jax_passing.switch.jobs.recoveries import put_last

SPAN_S = 600.0
POINTS = round(SPAN_S / SAMPLE_S)


class Point(NamedTuple):
    """In the seconds before `at` a job did this.

    Attributes:
      latest_share: the share of the time in which others waited for the rank for which they waited longest, `latest`.
      usual_share: the same of the rank in the middle.
      resends: a second.
    """

    at: float
    goodput_gbit: float
    latest_share: float
    latest: int
    usual_share: float
    resends: float


class History:
    """Has the last minutes of each job, in whatever epochs."""

    def __init__(self) -> None:
        self._by_job: dict[str, deque[Point]] = {}  # the one that was noted last is the last

    def add(self, epoch: Epoch, counted: Counted, now: float) -> None:
        shares = counted.waited_shares
        latest = max(range(len(shares)), key=shares.__getitem__)
        point = Point(
            at=now,
            goodput_gbit=counted.goodput_gbit,
            latest_share=shares[latest],
            latest=epoch.workers()[latest].rank,
            usual_share=statistics.median_low(shares),
            resends=counted.resends / counted.seconds,
        )
        points = self._by_job.get(epoch.job.name) or deque(maxlen=POINTS)
        points.append(point)
        put_last(self._by_job, epoch.job.name, points)

    def points(self, now: float) -> dict[str, list[Point]]:
        """Returns those of the last minutes, by the job, the newest last."""
        recent = {job: [point for point in points if now - point.at <= SPAN_S] for job, points in self._by_job.items()}
        return {job: points for job, points in recent.items() if points}
