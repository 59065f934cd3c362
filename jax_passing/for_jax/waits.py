"""Hosts whose calls make no progress compare what they wait in, by the coordinator of jax.distributed."""

import json
import logging
import threading
import time
from dataclasses import dataclass

import jax

from jax_passing._compat.process import coordinator
from jax_passing.errors import Failure, ProgramMismatchError, names

log = logging.getLogger("jax_passing")

KEPT_S = 3.0  # a call that goes on is told each second


@dataclass(frozen=True)
class Wait:
    """A device waits in a call.

    Attributes:
      group: of devices.
      number: of the call in the group; -1 for a message, as those aren't counted.
      what: the call, for people.
    """

    group: int
    number: int
    what: str


class Waits:
    """This host's calls that wait. Any thread may ask."""

    def __init__(self, rank: int, job: str, warn_s: float):
        self._rank, self._warn_s = rank, warn_s
        self._folder = f"jax_passing/waits/{job}/"
        self._lock = threading.Lock()
        self._own: dict[tuple[int, int], tuple[Wait, float]] = {}  # by group and device; with when it was told
        self._warned: set[Wait] = set()

    def stalled(self, hosts: tuple[int, ...], device: int, wait: Wait, still_s: float) -> Failure | None:
        """Tells the other hosts what a device of this one waits in. Returns why it waits in vain, if what they told
        shows it.

        Args:
          hosts: of the group.
          device: its index in the group.
        """
        told = self._tell(device, wait)
        calls = {rank: {each.what for each in waits if _same_call(each, wait)} for rank, waits in told.items()}
        if wait.number >= 0 and len(set[str]().union(*calls.values())) > 1:
            who = "; ".join(
                f"rank {rank} called {' and '.join(sorted(own))}" for rank, own in sorted(calls.items()) if own
            )
            return Failure(
                ProgramMismatchError.__name__,
                f"The hosts make different collectives where they have to make the same one: {who}. Run the same "
                "program on all hosts, with the same shapes and dtypes.",
            )
        if self._is_to_warn(wait, still_s):
            others = self._others_text([rank for rank in hosts if rank != self._rank], wait, told)
            log.warning("rank %d has waited %.1f s without progress in %s. %s.", self._rank, still_s, wait.what, others)
        return None

    def _is_to_warn(self, wait: Wait, still_s: float) -> bool:
        with self._lock:
            if still_s < self._warn_s:
                if wait.number < 0:  # another message may be called the same
                    self._warned.discard(wait)
                return False
            is_new = wait not in self._warned
            self._warned.add(wait)
            return is_new

    @staticmethod
    def _others_text(others: list[int], wait: Wait, told: dict[int, list[Wait]]) -> str:
        # A wait may be over: nobody takes back what was told.
        elsewhere = {
            rank: " and ".join(dict.fromkeys(each.what for each in told[rank]))
            for rank in others
            if rank in told and wait not in told[rank]
        }
        absent = [rank for rank in others if rank not in told]
        texts = [f"rank {rank} waited last in {what}" for rank, what in elsewhere.items()]
        texts += [f"{names(absent)} made no call that waits"] if absent else []
        return "; ".join(texts) or "All hosts of this group wait in it"

    def _tell(self, device: int, wait: Wait) -> dict[int, list[Wait]]:
        """Tells the others what this host waits in. Returns what each host told last."""
        now = time.monotonic()
        with self._lock:
            self._own[wait.group, device] = wait, now
            self._own = {key: (own, told) for key, (own, told) in self._own.items() if now - told < KEPT_S}
            mine = list(dict.fromkeys(own for own, _ in self._own.values()))
        client = coordinator()
        if client is None:
            return {self._rank: mine}
        text = json.dumps([[own.group, own.number, own.what] for own in mine])
        try:
            client.key_value_set(f"{self._folder}{self._rank}", text, allow_overwrite=True)
            found = client.key_value_dir_get(self._folder)
        except jax.errors.JaxRuntimeError as error:  # the coordinator is gone
            log.debug("the hosts can't compare what they wait in: %s", error)
            return {self._rank: mine}
        return {int(key.rpartition("/")[2]): [Wait(*each) for each in json.loads(text)] for key, text in found}


def _same_call(a: Wait, b: Wait) -> bool:
    return (a.group, a.number) == (b.group, b.number)
