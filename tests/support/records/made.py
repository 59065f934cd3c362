"""Records of hosts and switches are made for tests, as hosts and switches make them."""

from types import SimpleNamespace

from jax_passing.records.files import OURS
from jax_passing.records.host_record import of_host
from jax_passing.records.journal import Journal

NOW = 1_800_000_000.0  # since 1970, when all records are written
US = 1_000_000

A = "train.py:41:9 in step psum of float32[3] over d"
B = "train.py:52:9 in step psum of float32[7] over d"


def sum_of(site_name, execution, state, ago_s, *, number=0, ended_ago_s=0.0, step=0):
    """A sum that started `ago_s` before the record was written."""
    return SimpleNamespace(
        number=number,
        site=sum(site_name.encode()),
        execution=execution,
        step=step,
        site_name=site_name,
        state=state,
        dtype="float32",
        op="sum",
        bytes=12,
        elements=3,
        world_size=3,
        scheduled_us=int((1000 - ago_s) * US),
        started_us=int((1000 - ago_s) * US),
        ended_us=0 if state == "started" else int((1000 - ended_ago_s) * US),
    )


def host(rank, sums=(), *, world_size=3, events=(), gatherings=(), job="job", epoch=5, written_ago_s=0.0, ahead_s=0.0):
    """`events`: kind, seconds ago, text, facts. `ahead_s`: of its clock."""
    journal = Journal()
    journal.note(899.0, "asks", job, "asks to join")
    journal.note(900.0, "joined", job, "joined", rank=rank, epoch=epoch)
    for kind, ago_s, text, facts in events:
        journal.note(1000.0 - ago_s, kind, job, text, **facts)
    return of_host(
        list(sums),
        gatherings,
        journal.events,
        1000 * US,
        int((NOW - written_ago_s + ahead_s) * 1e9),
        job=job,
        rank=rank,
        world_size=world_size,
        epoch=epoch,
        address=f"10.0.0.{rank}",
        host_name=f"node{rank}",
        deadline_s=60.0,
    )


def switch(members, job="job", *, epoch=5, ahead_s=0.0):
    """`members`: rank and seconds of silence of each. `ahead_s`: of its clock. Messages take 0.1 s each way."""
    described = [
        {
            "ranks": [rank],
            "silent_s": silent_s,
            "hosts": [{"rank": rank, "address": f"10.0.0.{rank}", "name": f"node{rank}"}],
        }
        for rank, silent_s in members
    ]
    of_epoch = {"job": job, "epoch": epoch}
    events = [{"at": NOW - 100.1 + ahead_s, "kind": "started", "text": "ranks 0, 1", **of_epoch}]
    for rank, _ in members:
        about = {"kind": "joined", "text": f"rank {rank}", "rank": rank, **of_epoch}
        events.append({"at": NOW - 100.9 + ahead_s, **about})
    return {
        "jobs": [{"job": job, "members": described}],
        "events": events,
        OURS: {"kind": "switch", "written_at": NOW, "address": "s:1"},
    }
