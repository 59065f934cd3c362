"""A host writes its flight record when its session fails, and when somebody asks for it by SIGUSR1."""

import logging
import os
import signal
import threading
import time
from functools import partial

from jax_passing import _native
from jax_passing.config import Settings
from jax_passing.errors import ClosedError, Failure, HostJoinedError
from jax_passing.host.control.loop import Loop
from jax_passing.protocol.alike import version_of
from jax_passing.records import files
from jax_passing.records.host_record import of_host
from jax_passing.records.journal import Event, Journal

log = logging.getLogger("jax_passing")

SIGNAL = signal.SIGUSR1
WRITING_S = 5.0  # how long the end of a session waits for it
_HARMLESS = {HostJoinedError.__name__, ClosedError.__name__}


class Recorder:
    """Writes the record of one session, in a thread of its own: a folder may be on a network."""

    def __init__(self, settings: Settings, loop: Loop, journal: Journal):
        self._settings, self._loop, self._journal = settings, loop, journal
        self._threads: list[threading.Thread] = []
        self._failed_in: object = None  # the epoch whose failure was written
        journal.on_failure, journal.on_wanted = self._on_failure, self._on_wanted
        if not loop.watch_signal(SIGNAL, partial(self.write, "somebody sent SIGUSR1")):
            log.info("%s is handled or ignored by this program: it writes no flight record", SIGNAL.name)

    def _on_failure(self, failure: Failure) -> None:
        """The jobs of devices and of sets of hosts fail with the session's own, which is written once."""
        joined = self._joined()
        if failure.kind in _HARMLESS or joined is None or self._failed_in is joined:
            return
        self._failed_in = joined
        self.write(f"the session failed: {failure.kind}", failure)

    def _on_wanted(self, job: str) -> None:
        if job == self._settings.job:
            self.write("somebody asked at the switch")

    def write(self, reason: str, failure: Failure | None = None) -> None:
        """Takes note of everything, and writes it soon. Is called in the loop's thread."""
        sums, gatherings, events = _native.recorded_sums(), _native.open_gatherings(), list(self._journal.events)
        now_us, unix_ns = _native.monotonic_us(), time.time_ns()
        last = self._joined()
        joined = {} if last is None else last.facts
        rank = joined.get("rank", self._settings.rank)

        def write() -> None:
            record = of_host(
                sums,
                gatherings,
                events,
                now_us,
                unix_ns,
                job=self._settings.job,
                rank=rank,
                world_size=joined.get("world_size", self._settings.world_size),
                epoch=joined.get("epoch", 0),
                address=joined.get("address", ""),
                switches=joined.get("switches", []),
                host_name=self._loop.host_name,
                pid=os.getpid(),
                version=version_of("jax_passing"),
                deadline_s=self._settings.deadline_s,
                reason=reason,
                error=None if failure is None else failure.kind,
                message="" if failure is None else failure.message,
                lost=[] if failure is None else list(failure.ranks),
            )
            try:
                # A record that somebody asks for takes no room from those of failures.
                who = f"{self._loop.host_name}-rank{rank}" + ("-asked" if failure is None else "")
                file = files.write(record, who, self._settings.record_folder)
            except OSError as error:
                log.warning("the flight record can't be written (%s): %s", reason, error)
            else:
                log.warning(
                    "wrote the flight record %s, as %s. With those of the other hosts, `jax-passing why FILES` tells "
                    "who waited for whom.",
                    file,
                    reason,
                )

        self._threads = [each for each in self._threads if each.is_alive()]
        if self._threads and failure is None:  # as somebody asks again and again
            return
        writer = threading.Thread(target=write, name="jax_passing-record", daemon=True)
        try:
            writer.start()
        except RuntimeError:  # since Python 3.12 no thread begins while the interpreter ends: nobody waits then
            write()
        else:
            self._threads.append(writer)

    def _joined(self) -> Event | None:
        """Returns how the session joined its last epoch. Devices, and sets of hosts, have jobs of their own."""
        events = (event for event in self._journal.events if event.kind == "joined" and event.job == self._settings.job)
        return max(events, key=lambda event: event.at, default=None)

    def close(self) -> None:
        """Waits for what is being written. Bounded in time."""
        for thread in self._threads:
            thread.join(WRITING_S)
