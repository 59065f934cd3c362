"""A call that makes no progress: the hosts compare what they wait in, by the coordinator of jax.distributed."""

import json
import logging
from typing import Any

import jax

from jax_passing._compat.process import coordinator
from jax_passing.errors import Failure, ProgramMismatchError, names

log = logging.getLogger("jax_passing")

FOLDER = "jax_passing/waits/"


class Waits:
    """This host's calls that wait. Any thread may ask."""

    def __init__(self, rank: int, world_size: int, job: str, warn_s: float):
        self._rank, self._world_size, self._warn_s = rank, world_size, warn_s
        self._folder = f"{FOLDER}{job}/"
        self._warned: Any = None

    def stalled(self, group: int, hosts: tuple[int, ...], number: int, what: str, waited_s: float) -> Failure | None:
        """Tells the others that this host waits in a call, which is the group's with this number; -1: in a transfer.
        Returns why it waits in vain, if the others tell."""
        said = self._exchange(json.dumps([group, number, what]))
        calls = {rank: found for rank, text in said.items() if (found := json.loads(text))[:2] == [group, number]}
        if number >= 0 and len({found[2] for found in calls.values()}) > 1:
            who = "; ".join(f"rank {rank} called {found[2]}" for rank, found in sorted(calls.items()))
            return Failure(
                ProgramMismatchError.__name__,
                f"The hosts make different collectives where they have to make the same one: {who}. Run the same "
                "program on all hosts, with the same shapes and dtypes.",
            )
        if waited_s >= self._warn_s and self._warned != (group, number, what):
            self._warned = group, number, what
            others = [rank for rank in hosts if rank != self._rank]
            elsewhere = [
                f"rank {rank} waits in {json.loads(said[rank])[2]}"
                for rank in others
                if rank in said and rank not in calls
            ]
            absent = [rank for rank in others if rank not in said]
            text = "; ".join(elsewhere + ([f"{names(absent)} made no call that waits"] if absent else []))
            log.warning("rank %d has waited %.1f s in %s. %s", self._rank, waited_s, what, text)
        return None

    def _exchange(self, own: str) -> dict[int, str]:
        client = coordinator()
        if client is None:
            return {self._rank: own}
        try:
            client.key_value_set(f"{self._folder}{self._rank}", own, allow_overwrite=True)
            found = client.key_value_dir_get(self._folder)
        except jax.errors.JaxRuntimeError as error:  # the coordinator is gone
            log.debug("the hosts can't compare what they wait in: %s", error)
            return {self._rank: own}
        return {int(key.rpartition("/")[2]): text for key, text in found}
