"""A switch's operator drains it, ends a job, or puts one rank out of it. The callers decide who may say so:
`member_conversation.py` by keys, `local.py` by the user of a process on this machine."""

import logging

from jax_passing import job_names
from jax_passing.errors import EndedByOperatorError, names
from jax_passing.protocol import control_messages as messages
from jax_passing.switch.jobs.admission import RefusalError
from jax_passing.switch.jobs.epoch_states import EpochState
from jax_passing.switch.jobs.epochs import Epoch
from jax_passing.switch.jobs.jobs import JobTable
from jax_passing.switch.meetings.meetings import Meetings

log = logging.getLogger("jax_passing.switch")

HOW_TO_OPERATE = (
    "Give the switch's own key (--key-file), or run the command without one on the switch's machine, as the user that "
    "runs the switch or as root. With the key of a job (--key-file), its owners may end that job."
)
JOBS_SHOWN = 8
_KIND = EndedByOperatorError.__name__


class Operator:
    """Carries out the commands of this switch's operators on its jobs and meetings."""

    def __init__(self, jobs: JobTable, meetings: Meetings):
        self._jobs, self._meetings = jobs, meetings

    def carry_out(self, command: messages.Command, who: str, own_name: str, owned: str | None) -> messages.Done:
        """Does what the operator says.

        Args:
          who: says of the operator, for people: "user root on the switch's machine".
          own_name: the address of this switch.
          owned: the one job that the operator may end; None: all, and it may drain the switch.

        Raises:
          RefusalError: it may not, or there is no such job or rank here.
        """
        if owned is not None and (command.action != "end" or command.job != owned):
            raise RefusalError(
                f"The key of job {owned!r} lets its owners end that job, and no more. {HOW_TO_OPERATE}", "key"
            )
        drain = self._jobs.drain
        if command.action == "end":
            text, again = self._end(command, who, own_name, owned), False
        elif command.action == "drain":
            again = drain.since is not None and command.reason in ("", drain.reason)
            drain.begin(self._here(), command.reason)
            text = f"The switch at {own_name} drains: it admits no new job."
        else:
            again = drain.since is None
            drain.undo()
            text = f"The switch at {own_name} admits new jobs."
        if not again:
            why = f" ({command.reason})" if command.reason else ""
            log.warning("%s So says the operator, %s%s.", text, who, why)
        return messages.Done(text, len(self._here() if owned is None else self._here() & {owned}))

    def _here(self) -> set[str]:
        """Returns the users' names of the jobs that have hosts here."""
        jobs = {epoch.job.name for epoch in self._jobs.epochs()} | self._meetings.jobs()
        return {job_names.base(job) for job in jobs}

    def _end(self, command: messages.Command, who: str, own_name: str, owned: str | None) -> str:
        job = command.job
        if job not in self._here():
            there = f" There {_listed(sorted(self._here()))}." if owned is None else ""
            raise RefusalError(f"No job {job!r} is at the switch at {own_name}.{there}")
        why = f": {command.reason}" if command.reason else ""
        epochs = [epoch for epoch in self._jobs.epochs() if job_names.base(epoch.job.name) == job]
        if command.rank is not None:
            return self._end_rank(
                command.rank, _of_hosts(job, epochs), f"The operator of the switch at {own_name}", why
            )
        text = f"The operator of the switch at {own_name} ended job {job!r}{why}. (Said by {who}.)"
        for epoch in epochs:
            if epoch.state is EpochState.RUNNING:
                self._jobs.fail(epoch, messages.Failed(_KIND, text))
            else:
                self._jobs.refuse_all(epoch, text, _KIND)
        self._meetings.end(job, text, _KIND)
        return f"Job {job!r} was ended at the switch at {own_name}."

    def _end_rank(self, rank: int, epochs: list[Epoch], operator: str, why: str) -> str:
        """Ends one rank. In an elastic job that is running the others go on: it is theirs to tell, by `ranks`."""
        found = [epoch for epoch in epochs if rank in epoch.joined() and rank not in epoch.left]
        if not found:
            here = sorted({rank for epoch in epochs for rank in epoch.joined().keys() - epoch.left})
            have = names(here) if here else "no rank"
            raise RefusalError(f"Rank {rank} isn't in that job at this switch, which has {have} of it.")
        for epoch in found:
            text = f"{operator} put {epoch.who([rank])} out of {epoch}{why}."
            if epoch.state is EpochState.RUNNING:
                self._jobs.fail(epoch, messages.Failed(_KIND, text, (rank,)))
            else:
                self._jobs.refuse(epoch, messages.Refused(_KIND, text, rank))
        return f"Rank {rank} was put out of {found[0]}."


def _listed(jobs: list[str]) -> str:
    """Says which jobs there are. Their names are for operators alone."""
    if not jobs:
        return "are none"
    more = f" and {len(jobs) - JOBS_SHOWN} more" if len(jobs) > JOBS_SHOWN else ""
    return ("is " if len(jobs) == 1 else "are ") + ", ".join(map(repr, jobs[:JOBS_SHOWN])) + more


def _of_hosts(job: str, epochs: list[Epoch]) -> list[Epoch]:
    """Returns those of the job itself, or of its shards: the jobs of its devices have ranks of their own."""
    return [epoch for epoch in epochs if epoch.job.name.partition(job_names.SHARD_MARK)[0] == job]
