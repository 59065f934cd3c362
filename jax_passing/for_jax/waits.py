"""Hosts whose calls make no progress compare what they wait in, by the coordinator of jax.distributed."""

import json
import logging

import jax

from jax_passing._compat.process import coordinator
from jax_passing.errors import Failure, ProgramMismatchError, names

log = logging.getLogger("jax_passing")


class Waits:
    """This host's calls that wait. Any thread may ask."""

    def __init__(self, rank: int, job: str, warn_s: float):
        self._rank, self._warn_s = rank, warn_s
        self._folder = f"jax_passing/waits/{job}/"
        self._warned: tuple[int, int, str] | None = None  # of which call it has warned

    def stalled(self, group: int, hosts: tuple[int, ...], number: int, what: str, waited_s: float) -> Failure | None:
        """Tells the other hosts what this one waits in. Returns why it waits in vain, if what they told shows it.

        Args:
          number: of the call in the group; -1 for a message, as those aren't counted.
          what: the call, for people.
        """
        told = {rank: json.loads(text) for rank, text in self._exchange(json.dumps([group, number, what])).items()}
        calls = {rank: other for rank, (*call, other) in told.items() if call == [group, number]}
        if number >= 0 and len(set(calls.values())) > 1:
            who = "; ".join(f"rank {rank} called {call}" for rank, call in sorted(calls.items()))
            return Failure(
                ProgramMismatchError.__name__,
                f"The hosts make different collectives where they have to make the same one: {who}. Run the same "
                "program on all hosts, with the same shapes and dtypes.",
            )
        if waited_s >= self._warn_s and self._warned != (group, number, what):
            self._warned = group, number, what
            others = [rank for rank in hosts if rank != self._rank]
            # It may be over: nobody takes back what was told.
            elsewhere = [
                f"rank {rank} waited last in {told[rank][2]}" for rank in others if rank in told.keys() - calls
            ]
            absent = [rank for rank in others if rank not in told]
            text = "; ".join(elsewhere + ([f"{names(absent)} made no call that waits"] if absent else []))
            log.warning("rank %d has waited %.1f s in %s. %s", self._rank, waited_s, what, text)
        return None

    def _exchange(self, own: str) -> dict[int, str]:
        """Returns what each host told last."""
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
