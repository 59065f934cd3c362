"""Checks that packets don't show: a job that starts again, and what travels over control connections."""

import time
import uuid
from contextlib import closing

from jax_passing.conformance.live.job import Join, LiveJob
from jax_passing.conformance.live.joining import ask
from jax_passing.conformance.switch_under_test import Check
from jax_passing.protocol import control_messages as messages

SECTION = "control connection"
AT_ONCE_S = 5.0
QUIET_S = 0.3


def _next(job: LiveJob, rank: int, wait_s: float = AT_ONCE_S) -> messages.FromSwitch | None:
    """Returns the next message to this rank, except for heartbeats; None if none comes."""
    until = time.monotonic() + wait_s
    try:
        while isinstance(message := job.control_of(rank).receive(until), messages.Heartbeat):
            pass
    except TimeoutError:
        return None
    return message


def checks(join: Join) -> list[Check]:
    def starts_again() -> str:
        name = f"conformance {uuid.uuid4().hex}"
        with closing(join(2, name=name)) as job:
            before = job.welcome
            job.contribute(before, sequence=1000, version=0, workers=2)
            job.contribute(before, sequence=1000, version=1)
        with closing(join(2, name=name)) as job:
            now = job.welcome
            if (now.job_id, now.epoch) == (before.job_id, before.epoch):
                return f"it is job {now.job_id}, epoch {now.epoch} again"
            old = job.counters()
            if came := job.contribute(before, sequence=2000, version=1):
                return f"a packet of the former incarnation is answered: {came}"
            new = job.counters()
            foreign = sum(new.get(verdict, 1) - old.get(verdict, 0) for verdict in ("foreign_job", "foreign_epoch"))
            if foreign < 1:
                return "a packet of the former incarnation is counted neither as foreign_job nor as foreign_epoch"
            if came := job.answer(sequence=1000, version=0):
                return f"a result of the parent is taken for one of the former incarnation: {came}"
            if came := job.contribute(now, sequence=1000, version=0):
                return f"its slots weren't emptied, a contribution is answered with a result of the former one: {came}"
            new = job.counters()
            job.contribute(now, sequence=5, version=1)
            if job.counters().get("stale", 0) > new.get("stale", 0):
                return "its slots weren't emptied: a sequence that is older than the former incarnation's is stale"
        return ""

    def heartbeats() -> str:
        with closing(join(1)) as job:
            ask(job.control_of(0), messages.Heartbeat(), messages.Heartbeat)
        return ""

    def relays() -> str:
        said = [messages.Relay(messages.RELAYED_ORDER + which) for which in (b"one", b"two")]
        with closing(join(3)) as job:
            for speaker, others in ((0, (1, 2)), (1, (0,))):
                for message in said:
                    job.control_of(speaker).send(message)
                for rank in others:
                    came = [_next(job, rank) for _ in said]
                    if came != said:
                        return f"rank {speaker} said {said}, rank {rank} was told {came}"
                for rank in {0, 1, 2} - set(others):
                    if (told := _next(job, rank, QUIET_S)) is not None:
                        return f"rank {speaker} said {said}, and rank {rank} was told {told}"
        return ""

    def leaving() -> str:
        with closing(join(2)) as job:
            job.control_of(0).send(messages.Leave(0))
            if (early := _next(job, 0, QUIET_S)) is not None:
                return f"rank 0 has left, rank 1 hasn't; the switch says {early}"
            said = _next(job, 1)
            if not isinstance(said, messages.Left) or (said.ranks, said.sums) != ((0,), 0):
                return f"rank 0 has left after 0 sums; to rank 1 the switch says {said or 'nothing'}, not Left"
            job.control_of(1).send(messages.Leave(0))
            for rank in (0, 1):
                if not isinstance(said := _next(job, rank), messages.Bye):
                    return f"all have left; to rank {rank} the switch says {said or 'nothing'}, not Bye"
        return ""

    def breaking() -> str:
        with closing(join(3)) as job:
            job.control_of(1).hang_up()
            for rank in (0, 2):
                said = _next(job, rank)
                if not isinstance(said, messages.Failed):
                    return f"within {AT_ONCE_S:g} s rank {rank} is told {said or 'nothing'}, not Failed"
                if said.ranks != (1,):
                    return f"rank {rank} is told that ranks {said.ranks} are lost"
        return ""

    found = {
        "a job that starts again has other numbers and empty slots; packets of its former incarnation are dropped": (
            starts_again
        ),
        "heartbeats are echoed": heartbeats,
        "what rank 0 says comes to all others, and what others say to rank 0, in order": relays,
        "Left is said when the first has left, Bye when all have, not before": leaving,
        "a connection that breaks ends the job: all others are told at once": breaking,
    }
    return [Check(SECTION, description, find) for description, find in found.items()]
