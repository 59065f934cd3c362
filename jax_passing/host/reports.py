"""A session tells `jax.monitoring` every few seconds how its sums are doing.

Listeners are users' code, which may take long, so a thread of its own calls them.
"""

import threading
from typing import TYPE_CHECKING

from jax import monitoring

from jax_passing.errors import logged
from jax_passing.host.stats import Stats, busy_gbit, busy_share

if TYPE_CHECKING:
    from jax_passing.host.session import Session


PERIOD_S = 10.0
END_S = 1.0  # a listener that hangs doesn't keep the session from ending
BUSY_GBIT = "/jax_passing/busy_gbit"
BUSY_SHARE = "/jax_passing/busy_share"


class Reports:
    """Reports on one session, until that ends. The last period may be shorter."""

    def __init__(self, session: "Session", period_s: float = PERIOD_S):
        self._session, self._period_s = session, period_s
        self._is_over = threading.Event()
        self._before = session.stats()
        self._thread = threading.Thread(target=self._run, name="jax_passing-reports", daemon=True)
        self._thread.start()
        session.closers.append(self._end)

    def _run(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._is_over.wait(self._period_s)
            before, self._before = self._before, self._session.stats()
            with logged("a listener of jax.monitoring failed"):  # which ends no training
                self._report(before, self._before)

    def _report(self, before: Stats, after: Stats) -> None:
        """Tells of the time between the two, or since a `rejoin` in it, which counts from 0 again."""
        if after["session_s"] < before["session_s"]:
            before = {**before, "session_s": 0.0, "tensor_bytes": 0, "busy_us": 0}
        period: Stats = {
            **after,
            "session_s": after["session_s"] - before["session_s"],
            "busy_us": after["busy_us"] - before["busy_us"],
            "tensor_bytes": after["tensor_bytes"] - before["tensor_bytes"],
        }
        labels: dict[str, str | int] = {"job": self._session.settings.job or "", "rank": self._session.rank}
        monitoring.record_scalar(BUSY_GBIT, busy_gbit(period), **labels)
        monitoring.record_scalar(BUSY_SHARE, busy_share(period), **labels)

    def _end(self) -> None:
        self._is_over.set()
        if threading.current_thread() is not self._thread:  # a listener may end the session
            self._thread.join(END_S)
