"""A host tells its metrics by HTTP, if it is asked to: `init(metrics=...)`. A thread of its own answers."""

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING

from jax_passing import _native
from jax_passing.http_server import HttpServer, Response
from jax_passing.metrics import exposition

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from jax_passing.host.session import Session

_LABELS = ("job_name", "rank")
_COUNTERS = {
    "sums_started": "Sums over the hosts that began.",
    "sums_completed": "Sums over the hosts that are complete.",
    "tensor_bytes": "Bytes of the arrays of complete sums, of one device.",
    "packets_sent": "Packets to the switch.",
    "bytes_sent": "Bytes of these, without headers of UDP.",
    "packets_received": "Packets from the switch.",
    "bytes_received": "Bytes of these, without headers of UDP.",
    "packets_resent": "Packets that were sent again, as no result came in time.",
    "packets_dropped": "Packets that this host ignored.",
    "packets_forged": "Packets that had a result's numbers, but not the switch's tag.",
    "sums_wrong": "Results that weren't the sum of what all hosts sent.",
    "datagrams_unsent": "Packets that the kernel didn't take.",
}

_listeners: set[socket.socket] = set()


def serve(session: "Session", listener: socket.socket) -> None:
    """Serves until the session ends. Takes the socket."""
    _listeners.add(listener)
    session.closers.append(_Thread(session, listener).close)


class _Thread:
    def __init__(self, session: "Session", listener: socket.socket):
        self._session, self._listener = session, listener
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="jax_passing-metrics", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        http = HttpServer({"/metrics": self._metrics, "/health": self._health})
        await http.serve(self._listener)
        await self._stop.wait()
        http.close()

    def close(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        _listeners.discard(self._listener)

    async def _metrics(self, accept: str) -> Response:
        return exposition.written(lambda: _families(self._session), accept)

    async def _health(self, accept: str) -> Response:
        if (error := self._session.error) is None:
            return Response(b"sums go on\n")
        return Response(f"{type(error).__name__}: {error}\n".encode(), status=HTTPStatus.SERVICE_UNAVAILABLE)


def _families(session: "Session") -> "Iterator[Metric]":
    from jax_passing.metrics.families import Maker

    make = Maker("jax_passing_host")
    stats, status = session.stats(), session.status()
    labels = (session.settings.job or "", str(session.rank))
    for name, text in _COUNTERS.items():
        yield make.counter(name, text, _LABELS, [(labels, stats[name])])  # type: ignore[literal-required]
    text = "Time in which any sum was under way."
    yield make.counter("busy_seconds", text, _LABELS, [(labels, stats["busy_us"] / 1e6)])
    for name, text, value in (
        ("world_size", "Hosts of the job.", session.world_size),
        ("epoch", "The job's epoch at the switch.", session.epoch),
        ("failed", "1 if sums fail from now on.", status.error is not None),
        ("sums_in_flight", "Sums that began and aren't complete.", status.sums_in_flight),
        ("oldest_sum_seconds", "Time for which the oldest of them waits.", status.oldest and status.oldest.waited_s),
        ("window_chunks", "Chunks that may be under way.", stats["window_chunks"]),
        ("round_trip_seconds", "Smoothed time from a packet to its result.", stats["round_trip_us"] / 1e6),
    ):
        yield make.gauge(name, text, _LABELS, [(labels, value or 0.0)])
    text = "How long sums took, by the largest size of their class."
    times = session.control[1].times() if session.control else []
    by_size = zip(_sizes(), times, strict=bool(times))
    classes = [((*labels, size), counts, total_us / 1e6) for size, (counts, total_us) in by_size]
    yield make.histogram("sum_seconds", text, (*_LABELS, "size"), [us / 1e6 for us in _native.SUM_US_MAX], classes)


def _sizes() -> list[str]:
    """Returns the names of the classes of sums by size: "4 KiB", "1 MiB"."""
    names = [f"{largest >> 20} MiB" if largest >> 20 else f"{largest >> 10} KiB" for largest in _native.SUM_BYTES_MAX]
    return [*names, "larger"]


def _after_fork_in_child() -> None:
    """A child that outlives its parent mustn't keep the parent's port."""
    for listener in _listeners:
        os.close(listener.detach())
    _listeners.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
