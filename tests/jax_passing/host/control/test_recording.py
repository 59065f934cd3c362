"""A host writes its flight record once for each failure. End-to-end tests have real hosts."""

import os
import signal
import threading
from types import SimpleNamespace

import pytest

from jax_passing.config import Settings
from jax_passing.errors import Failure
from jax_passing.host.control.loop import Loop
from jax_passing.host.control.recording import Recorder
from jax_passing.records import files
from jax_passing.records.journal import Journal

LOST = Failure("HostLostError", "rank 1 is gone", (1,))


@pytest.fixture
def recorder(tmp_path):
    """A recorder of a session that has joined, and its journal; the program handles the signal."""
    journal = Journal()
    loop = SimpleNamespace(host_name="node", watch_signal=lambda number, on_signal: False)
    made = Recorder(Settings(job="job", record_folder=tmp_path / "folder"), loop, journal)
    journal.note(1.0, "joined", "job", "", rank=2, world_size=3, epoch=7, address="10.0.0.2", switches=["s:1"])
    yield made, journal
    made.close()


def written(recorder, tmp_path):
    recorder.close()
    return [files.read(file)[files.OURS] for file in sorted((tmp_path / "folder").glob("*.json"))]


def test_a_failure_is_written_once(recorder, tmp_path):
    made, journal = recorder
    journal.failed(2.0, "job/devices", LOST)
    journal.failed(2.1, "job", Failure("SwitchLostError", "a follow-up"))
    (facts,) = written(made, tmp_path)
    assert (facts["rank"], facts["world_size"], facts["epoch"], facts["address"]) == (2, 3, 7, "10.0.0.2")
    assert (facts["error"], facts["message"], facts["lost"]) == ("HostLostError", "rank 1 is gone", [1])
    assert facts["pid"] == os.getpid()
    journal.note(3.0, "joined", "job", "", rank=2, world_size=3, epoch=8)
    journal.failed(4.0, "job", LOST)
    assert [facts["epoch"] for facts in written(made, tmp_path)] == [7, 8]


def test_a_newcomer_is_no_failure(recorder, tmp_path):
    made, journal = recorder
    journal.failed(2.0, "job", Failure("HostJoinedError", "a host wants to join"))
    assert written(made, tmp_path) == []


def test_who_asks_gets_the_record_of_the_job_itself(recorder, tmp_path):
    made, journal = recorder
    journal.on_wanted("job/hosts 0,2")
    assert written(made, tmp_path) == []
    journal.on_wanted("job")
    (facts,) = written(made, tmp_path)
    assert (facts["reason"], facts["error"]) == ("somebody asked at the switch", None)


def test_a_folder_that_is_none_is_said(recorder, tmp_path, caplog):
    made, journal = recorder
    (tmp_path / "folder").write_text("")
    journal.failed(2.0, "job", LOST)
    made.close()
    assert "the flight record can't be written (the session failed: HostLostError): " in caplog.text


def test_a_signal_reaches_the_loop_unless_the_program_handles_it():
    loop, heard = Loop(), threading.Event()
    try:
        assert loop.watch_signal(signal.SIGUSR1, heard.set)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert heard.wait(20)
        before = signal.signal(signal.SIGUSR2, lambda number, frame: None)
        try:
            assert not loop.watch_signal(signal.SIGUSR2, heard.set)
        finally:
            signal.signal(signal.SIGUSR2, before)
    finally:
        loop.close()
