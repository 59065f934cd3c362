"""Shards of a job become one job, and who is late is found."""

import pytest

from jax_passing.errors import SwitchUnreachableError
from jax_passing.protocol.overview import overview


def member(rank, waited_s, *, last=10, **changes):
    known = {"last": last, "last_share": last / 100, "waited_s": waited_s, "waited_share": waited_s / 60.0}
    hosts = [{"rank": rank, "address": f"10.0.0.{rank}", "name": ""}]
    about = {"ranks": [rank], "switch": None, "address": f"10.0.0.{rank}", "port": 5, "hosts": hosts}
    return {**about, "has_left": False, **known, "resends": 1, "silent_s": 2.0, **changes}


def job(*waited_s, **changes):
    known = {"goodput_gbit": 2.0, "link_gbit": 10.0, "minute_s": 60.0, "chunks": 100, "resends": 4}
    return {
        **{"job": "a", "shard": 0, "shards": 1, "epoch": 7, "state": "running", "for_s": 90.0, "world_size": 4},
        **{"slots": 256, "absent": [], "left": [], "awaits": "", "parent": None, "line_rate_share": 0.2},
        **{**known, "chunks_waiting": 3, "oldest": None},
        "members": [member(rank, waited) for rank, waited in enumerate(waited_s)],
        **changes,
    }


def answer(*jobs, **changes):
    lists = {part: [] for part in ("meetings", "ended", "refusals")}
    return {"switch": {"up_s": 1.0}, "jobs": list(jobs), **lists, "packets": None, "counts": None, **changes}


def merged(*jobs):
    (one,) = overview({"s:1": answer(*jobs)})["jobs"]
    return one


@pytest.mark.parametrize(
    ("waited_s", "late"),
    [
        ((0.1, 0.2, 12.0, 0.1), [2]),
        ((0.1, 9.0, 12.0, 0.2), [2, 1]),
        ((0.1, 20.0), [1]),
        ((20.0, 19.0, 21.0, 20.0), []),  # they take turns
        ((0.0, 0.0, 0.0, 0.0), []),
        ((0.1, 0.1, 1.0, 0.1), []),  # too little to matter
        ((30.0,), []),
    ],
)
def test_who_is_late(waited_s, late):
    assert [one["ranks"][0] for one in merged(job(*waited_s))["late"]] == late


def test_the_others_are_those_that_are_not_late():
    (late,) = merged(job(0.1, 0.3, 12.0, 0.2))["late"]
    assert (late["waited_s"], late["others_waited_s"]) == (12.0, 0.2)


def test_what_nobody_counts_accuses_nobody():
    unknown = dict.fromkeys(("last", "last_share", "waited_s", "waited_share", "resends", "silent_s"))
    one = merged(job(members=[{**member(rank, 1.0), **unknown} for rank in range(2)], chunks=None, goodput_gbit=None))
    assert (one["late"], one["goodput_gbit"], one["line_rate_share"], one["chunks"]) == ([], None, None, None)
    assert one["members"][0]["waited_s"] is None


def test_a_job_on_several_switches_is_one_job():
    oldest = {"slot": 1, "sequence": 2, "missing": [1], "waits_for": "rank 1"}
    first = job(0.1, 3.0, oldest={**oldest, "waited_s": 1.0})
    second = job(0.2, 4.0, shard=1, epoch=9, state="preparing", oldest={**oldest, "waited_s": 5.0}, absent=[1])
    seen = overview({"s:1": answer(first), "t:1": answer(second), "u:1": SwitchUnreachableError("no answer")})
    (one,) = seen["jobs"]
    assert (one["switches"], one["epochs"], one["state"], one["slots"]) == (["s:1", "t:1"], [7, 9], "preparing", 512)
    assert (one["goodput_gbit"], one["line_rate_share"], one["chunks"], one["resends"]) == (4.0, 0.4, 200, 8)
    assert (one["oldest"]["waited_s"], one["oldest"]["at"], one["absent"]) == (5.0, "t:1", [1])
    assert [(each["last_share"], each["waited_s"], each["resends"]) for each in one["members"]] == [
        (0.1, 0.2, 2),
        (0.1, 4.0, 2),
    ]
    assert [each["address"] for each in seen["switches"]] == ["s:1", "t:1"]
    assert seen["unknown"] == [{"address": "u:1", "why": "no answer"}]


def test_the_latest_refusals_of_all_switches_come_first():
    refusals = [{"ago_s": ago_s, "who": "x"} for ago_s in (3.0, 8.0)]
    seen = overview({"s:1": answer(refusals=refusals[1:]), "t:1": answer(refusals=refusals[:1])})
    assert [(one["ago_s"], one["at"]) for one in seen["refusals"]] == [(3.0, "t:1"), (8.0, "s:1")]
