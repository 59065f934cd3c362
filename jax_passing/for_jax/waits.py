"""Hosts whose calls make no progress compare what they wait in, by the coordinator of jax.distributed.

Anybody who reaches the coordinator can write there. So entries that aren't understood are left out, and where the job
has a key, what no host of it has sealed.
"""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import jax
import msgspec
from msgspec import Meta

from jax_passing._compat.process import coordinator, told_in
from jax_passing.errors import Failure, ProgramMismatchError, names
from jax_passing.for_jax.groups import DeviceGroup
from jax_passing.protocol import keys

log = logging.getLogger("jax_passing")

KEPT_S = 3.0  # a call that lasts is told each second
_SHOWN_MAX = 4  # ranks that call different things


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


class Told(msgspec.Struct, array_like=True, frozen=True):
    """Devices of a host, by their indexes in the group, wait in a call."""

    group: int
    number: int
    what: Annotated[str, Meta(max_length=2000)]
    devices: tuple[int, ...]

    @property
    def wait(self) -> Wait:
        return Wait(self.group, self.number, self.what)


class Waits:
    """This host's calls that wait. Any thread may ask."""

    def __init__(self, rank: int, job: str, warn_s: float, key: bytes | None = None, run: str = ""):
        """`key`: of the job, if it has one. `run`: tells this run of the job from others."""
        self._rank, self._warn_s, self._key = rank, warn_s, key
        self._folder, self._about = f"jax_passing/waits/{job}/", f"waits {run} "
        self._lock = threading.Lock()
        self._own: dict[tuple[int, int], tuple[Wait, float]] = {}  # by group and device; with when it was told
        self._warned: set[Wait] = set()

    def stalled(self, group: DeviceGroup, device: int, wait: Wait, still_s: float) -> Failure | None:
        """Tells the other hosts what a device of this one, with this index in the group, waits in. Returns why it waits
        in vain, if what they told shows it."""
        told = self._tell(group.host_set, device, wait)
        calls = {rank: {each.what for each in waits if _same_call(each, wait)} for rank, waits in told.items()}
        if wait.number >= 0 and len(set[str]().union(*calls.values())) > 1:
            who = [f"rank {rank} called {' and '.join(sorted(own))}" for rank, own in sorted(calls.items()) if own]
            return Failure(
                ProgramMismatchError.__name__,
                "The hosts make different collectives where they have to make the same one: "
                f"{'; '.join(who[:_SHOWN_MAX])}. Run the same programs on all hosts, in the same order, with the same "
                "shapes and dtypes. (Programs are counted in the order in which they first called.)",
            )
        if self._is_to_warn(wait, still_s):
            others = self._others_text(group, wait, told)
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

    def _others_text(self, group: DeviceGroup, wait: Wait, told: dict[int, list[Told]]) -> str:
        # A wait may be over: nobody takes back what was told.
        texts, absent = [], []
        for rank in group.host_set:
            waits = told.get(rank)
            here = [each for each in waits or () if each.wait == wait]
            missing = [index for index, host in enumerate(group.hosts) if host == rank and here and wait.number >= 0]
            missing = sorted(set(missing).difference(*(each.devices for each in here)))
            if waits is None:
                absent.append(rank)
            elif not here:
                elsewhere = " and ".join(dict.fromkeys(each.what for each in waits))
                texts.append(f"rank {rank} waited last in {elsewhere}")
            elif missing:
                devices = f"device{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
                texts.append(
                    f"rank {rank} waits in it without its {devices} of the group: maybe the program has failed there"
                )
        texts += [f"{names(absent)} made no call that waits"] if absent else []
        return "; ".join(texts) or "All hosts of this group wait in it"

    def _tell(self, hosts: Sequence[int], device: int, wait: Wait) -> dict[int, list[Told]]:
        """Publishes this host's waits. Returns the last published waits of each of these hosts."""
        now = time.monotonic()
        with self._lock:
            self._own[wait.group, device] = wait, now
            self._own = {key: (own, told) for key, (own, told) in self._own.items() if now - told < KEPT_S}
            devices: dict[Wait, list[int]] = {}
            for (_, index), (own, _) in self._own.items():
                devices.setdefault(own, []).append(index)
        mine = [Told(own.group, own.number, own.what, tuple(sorted(where))) for own, where in devices.items()]
        client = coordinator()
        if client is None:
            return {self._rank: mine}
        text = keys.sealed(self._key, f"{self._about}{self._rank}", msgspec.json.encode(mine).decode())
        try:
            client.key_value_set(f"{self._folder}{self._rank}", text, allow_overwrite=True)
            found = told_in(client, self._folder)
        except jax.errors.JaxRuntimeError as error:  # the coordinator is gone
            log.debug("the hosts can't compare what they wait in: %s", error)
            return {self._rank: mine}
        told = {rank: self._read(rank, found[str(rank)]) for rank in hosts if str(rank) in found}
        return {rank: waits for rank, waits in told.items() if waits is not None} | {self._rank: mine}

    def _read(self, rank: int, text: str) -> list[Told] | None:
        """Returns a host's entry; None if no host wrote it."""
        content = keys.unsealed(self._key, f"{self._about}{rank}", text)
        if content is None:
            log.debug("the coordinator of jax.distributed has a wait of rank %s that no host of this job told", rank)
            return None
        try:
            return msgspec.json.decode(content, type=list[Told])
        except msgspec.DecodeError as error:
            log.debug("the coordinator of jax.distributed has a wait of rank %s that is none: %s", rank, error)
            return None


def _same_call(a: Told, b: Wait) -> bool:
    return (a.group, a.number) == (b.group, b.number)
