"""Flight records tell who waited for whom, and say what they can't tell."""

from types import SimpleNamespace

import pytest

from jax_passing.errors import Failure
from jax_passing.records.diagnosis import diagnose
from jax_passing.records.journal import Journal
from jax_passing.records.sentences import sentences
from support.records.made import US, A, B, host, sum_of, switch


def done(execution, ago_s):
    return sum_of(A, execution, "completed", ago_s, ended_ago_s=ago_s - 0.1)


def waiting(execution=7, ago_s=5.0, site_name=A, state="started"):
    return sum_of(site_name, execution, state, ago_s)


def told(*records):
    diagnosis = diagnose(records)
    return diagnosis, sentences(diagnosis)


def test_a_host_that_computes():
    diagnosis, text = told(*(host(rank, [done(6, 9.0), waiting()]) for rank in (0, 1)), host(2, [done(6, 8.0)]))
    (wait,) = diagnosis.waits
    assert (wait.waiting, wait.absent, wait.unknown, wait.done) == ([0, 1], [2], [], [])
    assert text[0] == "Job 'job', epoch 5, has 3 ranks; records of ranks 0, 1, 2 are here."
    assert text[1].startswith(f"Ranks 0, 1 waited for rank 2 in {A} (execution 7, step 0), since ")
    assert text[1].endswith(", 5.0 s before the last record was written.")
    assert text[2].startswith(f"Rank 2 (node2, 10.0.0.2) was in no sum: its last one, {A} (execution 6, step 0), was")
    assert ", 7.9 s before its record was written." in text[2]
    assert len(text) == 3


def test_a_host_whose_clock_is_ahead():
    diagnosis, text = told(
        host(0, [done(5, 9.0), waiting()], world_size=2),
        host(1, [done(5, 9.0), done(6, 8.0)], world_size=2, ahead_s=60.0),
    )
    assert diagnosis.hosts[1].ahead_s == pytest.approx(60.0)
    assert text[1].endswith(", 5.0 s before the last record was written.")
    assert ", 7.9 s before its record was written." in text[2]


def test_a_host_without_a_record():
    stall = ("stall", 1.0, "Missing: rank 2 (10.0.0.2).", {"site_name": A, "missing": [2]})
    diagnosis, text = told(
        host(0, [waiting()], events=[stall]), host(1, [waiting()]), switch([(0, 0.1), (1, 0.1), (2, 6.5)])
    )
    assert diagnosis.without_record == [2]
    assert text[1].startswith("Ranks 0, 1 waited for rank 2 in ")
    assert text[2].startswith("There is no record of rank 2: it died, is stopped (SIGSTOP), its network is cut, or ")
    assert "The switch had its (node2, 10.0.0.2) last new chunk 6.5 s before its record." in text[2]
    assert text[2].endswith("Missing: rank 2 (10.0.0.2).")


def test_programs_that_wait_for_each_other():
    _, text = told(
        host(0, [waiting(site_name=A)]), host(1, [waiting(site_name=B, ago_s=4.0)]), host(2, [waiting(site_name=A)])
    )
    assert text[1].startswith(f"Ranks 0, 2 waited for rank 1 in {A}")
    assert text[2].startswith(f"Rank 1 (node1, 10.0.0.1) waited itself, in {B}")
    assert text[3].startswith(f"At the same time rank 1 waited for ranks 0, 2 in {B}")
    assert text[4].startswith("They waited for each other")


def test_sums_that_wait_for_the_same_ranks_are_told_once():
    several = [waiting(ago_s=5.0), waiting(ago_s=4.0, site_name=B)]
    diagnosis, text = told(host(0, several), host(1, several), host(2, [done(6, 8.0)]))
    assert len(diagnosis.waits) == 2
    assert sum("waited for rank 2" in each for each in text) == 1


def test_devices_that_didnt_come():
    gathering = SimpleNamespace(site_name=A, calls=1, call_count=4, opened_us=990 * US)
    _, text = told(host(0, [waiting()], world_size=2), host(1, [], world_size=2, gatherings=[gathering]))
    assert f"Rank 1 (node1, 10.0.0.1) had 1 of its 4 devices at {A}, since" in text[2]


def test_a_host_that_has_made_no_sum_and_one_that_left():
    _, text = told(host(0, [waiting()]), host(1), host(2, [done(6, 9.0)], events=[("left", 2.0, "", {})]))
    assert "Rank 1 (node1, 10.0.0.1) had made no sum yet" in text[2]
    assert text[3] == "Rank 2 (node2, 10.0.0.2) had left the job: it wanted no more sums."


def test_results_that_dont_arrive():
    _, text = told(host(0, [waiting()], world_size=2), host(1, [sum_of(A, 7, "completed", 5.0)], world_size=2))
    assert text[1].startswith(f"Rank 0 waited in {A}")
    assert text[2].startswith("Rank 1 had its result, which didn't reach the others")
    _, text = told(host(0, [waiting()], world_size=2), host(1, [waiting()], world_size=2))
    assert text[2].startswith("All ranks had started it, so packets were lost")


def test_the_failure_that_came_first_is_told():
    failed = ("failed", 1.0, "Rank 1 left: it stopped with KeyError", {"error": "HostLostError", "ranks": [1]})
    later = ("failed", 0.5, "another", {"error": "ClosedError", "ranks": []})
    _, text = told(
        host(0, [waiting(state="failed")], world_size=2, events=[later]),
        host(1, [done(6, 3.0)], world_size=2, events=[failed]),
    )
    assert text[1].endswith("with HostLostError: Rank 1 left: it stopped with KeyError")
    assert text[2].startswith("Rank 0 waited for rank 1 in")


def test_older_records_and_other_epochs_are_left_out():
    diagnosis, text = told(
        host(0, [waiting(3)], written_ago_s=60.0),
        host(0, [waiting(3)], epoch=4, written_ago_s=120.0),
        host(0, [waiting()]),
        host(1, [done(6, 2.0)]),
        host(2, [done(6, 2.0)]),
    )
    assert diagnosis.left_out == 2
    assert [wait.sum["execution"] for wait in diagnosis.waits] == [7]
    assert "(2 older ones, or of other jobs, are left out)" in text[0]


def test_nobody_waits():
    _, text = told(host(0, [done(6, 2.0)], world_size=1))
    assert text[1] == "No rank waited in a sum when its record was written."
    assert text[2].startswith("Rank 0 (node0, 10.0.0.0) was in no sum")


def test_a_switch_alone_tells_nothing():
    assert diagnose([switch([(0, 1.0)])]) is None


def test_a_journal_is_bounded_and_tells_failures():
    journal, heard = Journal(2, 5), []
    journal.on_failure = heard.append
    failure = Failure("HostLostError", "rank 1 is gone", (1,))
    for number in range(3):
        journal.note(float(number), "note", "job", "a long text")
    journal.failed(3.0, "job", failure)
    assert [(event.at, event.text) for event in journal.events] == [(2.0, "a lon"), (3.0, "rank ")]
    assert journal.events[-1].facts == {"error": "HostLostError", "ranks": [1]}
    assert heard == [failure]


@pytest.mark.parametrize("state", ["started", "failed"])
def test_entries_have_the_fields_of_pytorchs_recorder(state):
    record = host(1, [done(1, 9.0), waiting(2, 5.0, state=state)])
    first, last = record["entries"]
    group = first["process_group"][0]
    assert record["pg_config"][group] == {"name": group, "desc": A, "ranks": "[0, 1, 2]"}
    assert record["pg_status"][group] == {
        "last_enqueued_collective": 2 << 20,
        "last_started_collective": 2 << 20,
        "last_completed_collective": 1 << 20,
    }
    assert first["frames"] == [{"filename": "train.py", "line": 41, "name": "step"}]
    assert (first["state"], first["retired"], last["state"]) == ("completed", True, state)
    assert (first["input_sizes"], first["input_dtypes"], first["bytes"]) == ([[3]], ["float32"], 12)
    assert last["time_discovered_started_ns"] == last["time_created_ns"] == 1_799_999_995_000_000_000
    assert (last["time_discovered_completed_ns"] is None) == (state == "started")
