"""Switches behind UDP and a control connection, as `jax-passing conformance` tests any switch."""

import io
import itertools
import socket
import ssl
import threading
import time
from contextlib import closing, suppress
from dataclasses import replace

import msgspec
import pytest
from rich.console import Console
from support.jax.in_process import SwitchThread
from support.switch.model_switch import ModelDataPlane, ModelSwitch
from typer.testing import CliRunner

from jax_passing.commands import cli
from jax_passing.config import parse_address
from jax_passing.conformance import run
from jax_passing.conformance.exchanges import golden
from jax_passing.conformance.exchanges.exchange import Exchange, Step, answered_by_model, jobs_of
from jax_passing.conformance.exchanges.model import Limits
from jax_passing.conformance.live import fences, joining, key_checks, parent_role, suite
from jax_passing.conformance.live.job import LiveJob
from jax_passing.conformance.live.suite import LiveSwitch
from jax_passing.conformance.switch_under_test import UntestableError
from jax_passing.errors import ConfigError
from jax_passing.host.control_connection import ControlConnection
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol import keys, secure_channel
from jax_passing.protocol.packet import Packet, decode
from jax_passing.protocol.verdicts import VERDICTS
from jax_passing.switch.jobs import group_probe
from jax_passing.switch.server import member_conversation

KEY = keys.new_key()


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A busy machine must not make the suite ask again: it doesn't compare what may have been counted twice."""
    monkeypatch.setattr(fences, "ANSWER_S", 5.0)


@pytest.fixture
def parent_at():
    """An address where nobody listens yet."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        return unused.getsockname()


def failures(address, seeds=20, parent_at=None, key=None):
    """Returns the failures by case, and how many cases were not applicable."""
    with closing(LiveSwitch(address, parent_at, key)) as under_test:
        done = list(run.outcomes(under_test, run.cases(under_test.limits, 0, seeds), Console(file=io.StringIO())))
    return {one.case.description: one.failure for one in done if one.failure}, sum(
        bool(one.not_applicable) for one in done
    )


FEW = [{"lanes_per_chunk": 64}, {"slots_per_job": 16, "slot_total": 48}]


@pytest.mark.parametrize("changes", [{}, *(pytest.param(each, marks=pytest.mark.slow) for each in FEW)], ids=str)
def test_cpp_switch(changes):
    running = SwitchThread(**changes)
    try:
        failed, _ = failures(parse_address(running.address))
        assert failed == {}
    finally:
        running.stop()
    assert running.counters["epochs_failed"] == 1, "a check breaks a connection"


@pytest.fixture
def key_file(tmp_path):
    file = tmp_path / "switch.key"
    file.touch(mode=0o600)
    file.write_text(keys.key_line(keys.SWITCH, KEY))
    return file


@pytest.mark.slow  # the one with a parent has a key, too
def test_cpp_switch_with_a_key(key_file):
    running = SwitchThread(key_file=key_file)
    try:
        failed, _ = failures(parse_address(running.address), key=KEY)
        assert failed == {}
    finally:
        running.stop()
    assert running.counters["forged"] == 165
    assert running.counters["connections_without_key"] == 2


def test_a_data_plane_that_cant_check_tags_behind_a_key(monkeypatch):
    few_cases(monkeypatch)
    with (
        closing(ModelSwitch(switch_key=KEY)) as switch,
        closing(LiveSwitch(switch.address, switch_key=KEY)) as tested,
    ):
        done = list(run.outcomes(tested, run.cases(tested.limits, 0, 1), Console(file=io.StringIO())))
    assert [one.failure for one in done if one.failure] == []
    without_tags = [one.case.section for one in done if one.not_applicable == "its packets have no tags"]
    assert without_tags == [key_checks.SECTION] * 7


def key_failures(key_file):
    """Returns the failures of the checks that are for switches with a key."""
    running = SwitchThread(key_file=key_file)
    try:
        with closing(LiveSwitch(parse_address(running.address), switch_key=KEY)) as under_test:
            checks = [check for check in under_test.checks() if check.section == key_checks.SECTION]
            return [run.found(check).failure for check in checks]
    finally:
        running.stop()


def test_a_switch_that_takes_forged_packets_is_found(monkeypatch, key_file):
    judge = key_checks._Chunk.judge
    monkeypatch.setattr(key_checks._Chunk, "judge", lambda chunk, forged: judge(chunk, [chunk.right]))
    failed = [text for text in key_failures(key_file) if text]
    assert len(failed) == 6
    assert all("one of 1 forged packets is answered with result: " in text for text in failed)


def test_a_switch_that_joins_whoever_comes_is_found(monkeypatch, key_file):
    monkeypatch.setattr(member_conversation.MemberConversation, "_check_key", lambda conversation, join: None)
    failed = [text for text in key_failures(key_file) if text]
    assert len(failed) == 2
    assert all(text.startswith("it answers Welcome(") for text in failed)


def test_a_switch_that_hangs_up_instead_of_refusing_is_found(monkeypatch, key_file):
    conversation = member_conversation.MemberConversation
    monkeypatch.setattr(conversation, "_turn_away", lambda one, why, job="": one._connection.close())
    failed = [text for text in key_failures(key_file) if text]
    assert failed == ["the switch doesn't answer as it must: the connection was closed"] * 2


def test_a_switch_that_asks_for_no_proof_is_found(monkeypatch, key_file):
    context = secure_channel.context

    def without_proof(key, *, server_side):
        made = context(key, server_side=server_side)
        if server_side:
            made.verify_mode = ssl.CERT_NONE
        return made

    monkeypatch.setattr(secure_channel, "context", without_proof)
    failed = [text for text in key_failures(key_file) if text]
    assert len(failed) == 1
    assert "to somebody who doesn't know the job's key it says" in failed[0]


@pytest.mark.parametrize(
    ("of_switch", "given", "text"),
    [
        (True, [], "it has a key: give the file with it by --key-file."),
        (False, ["--key-file", "FILE"], "it has another key than the one in --key-file, or none."),
        (True, ["--key-file", "OTHER"], "it has another key than the one in --key-file, or none."),
    ],
)
def test_command_says_that_the_key_is_missing_or_wrong(tmp_path, key_file, of_switch, given, text):
    other = tmp_path / "other.key"
    other.write_text(keys.key_line(keys.SWITCH, keys.new_key()))
    running = SwitchThread(key_file=key_file if of_switch else None)
    given = [str({"FILE": key_file, "OTHER": other}.get(word, word)) for word in given]
    try:
        result = CliRunner().invoke(cli.app, ["conformance", "--switch", running.address, *given])
    finally:
        running.stop()
    assert text in str(result.exception)


@pytest.mark.parametrize("key", [pytest.param(None, marks=pytest.mark.slow), KEY], ids=["without a key", "with a key"])
def test_cpp_switch_with_a_parent(parent_at, key_file, key):
    running = SwitchThread(parent=parent_at, key_file=key and key_file)
    try:
        failed, not_applicable = failures(parse_address(running.address), 10, parent_at, key)
    finally:
        running.stop()
    assert failed == {}
    assert not_applicable < len(golden.read()), "the cases of trees apply"
    assert running.counters["answered"] > 100


def test_a_parent_has_a_jobs_new_numbers_as_soon_as_its_workers_do(monkeypatch, parent_at):
    def send(line, message, usual=parent_role._Line.send):
        usual(line, message)
        time.sleep(0.2)  # the switch goes on meanwhile

    monkeypatch.setattr(parent_role._Line, "send", send)
    running = SwitchThread(parent=parent_at)
    try:
        with closing(LiveSwitch(parse_address(running.address), parent_at)) as under_test:
            again = [check for check in under_test.checks() if "starts again" in check.description]
            assert [check.find() for check in again] == [""]
    finally:
        running.stop()


def test_a_switch_below_another_needs_as_parent():
    parent = SwitchThread()
    running = SwitchThread(parent=parse_address(parent.address))
    try:
        with pytest.raises(UntestableError, match="it has a parent: run this .* with --as-parent HOST:PORT"):
            LiveSwitch(parse_address(running.address))
    finally:
        running.stop()
        parent.stop()


@pytest.mark.slow
def test_a_switch_whose_parent_is_absent_needs_as_parent(parent_at):
    running = SwitchThread(parent=parent_at)
    try:
        with pytest.raises(
            UntestableError, match="it has a parent, which isn't there: run this .* --as-parent HOST:PORT"
        ):
            LiveSwitch(parse_address(running.address))
    finally:
        running.stop()


TOO_LITTLE = {
    "the test needs 16 for each of 3 jobs: start it with --slots-per-job 16": {"slots_per_job": 8},
    "(the test has up to 3 jobs at once): The switch at": {"slots_per_job": 16, "slot_total": 32},
    "its lease is 1 s, and workers of the test may be silent for longer": {"lease_s": 1.0},
}


@pytest.mark.parametrize("text", TOO_LITTLE)
def test_command_says_what_the_switch_has_too_little_of(text):
    running = SwitchThread(**TOO_LITTLE[text])
    try:
        result = CliRunner().invoke(cli.app, ["conformance", "--switch", running.address, "--exchanges", "0"])
    finally:
        running.stop()
    said = str(result.exception)
    assert text in said
    assert said.endswith(".")
    assert not said.endswith("..")


def test_command_prints_a_table():
    running = SwitchThread()
    try:
        arguments = ["conformance", "--switch", running.address, "--exchanges", "3", "--seed", "40"]
        result = CliRunner().invoke(cli.app, arguments)
    finally:
        running.stop()
    assert result.exit_code == 0, result.output
    assert "seed 42" in result.output
    assert ", 0 failed, " in result.output


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--switch", "here"], "expected HOST:PORT"),
        (["--switch", "here:0"], "with a port from 1 to"),
        (["--switch", "here:7171", "--as-parent", "there:0"], "with a port from 1 to"),
    ],
)
def test_command_says_what_is_wrong_with_an_address(flags, text):
    result = CliRunner().invoke(cli.app, ["conformance", *flags])
    assert isinstance(result.exception, ConfigError)
    assert text in str(result.exception)


@pytest.mark.parametrize(
    "limits",
    [Limits(lanes_per_chunk=64, whole_chunks=True, worker_limit=32), Limits(lanes_per_chunk=8, worker_limit=3)],
    ids=str,
)
def test_other_limits(limits):
    with closing(ModelSwitch(limits)) as switch:
        failed, not_applicable = failures(switch.address, seeds=10)
    assert failed == {}
    assert not_applicable > 0


class Fault:
    """One thing goes wrong: `change` gets the destinations and the packet of one kind of answer."""

    def __init__(self, verdict, change):
        self.verdict, self.change = verdict, change

    def __call__(self, verdict, to, packet):
        applies = verdict == self.verdict and decode(packet).sequence != 1  # the sequence of fences
        return self.change(to, packet) if applies else (to, packet)


FAULTS = {
    "result twice": (lambda to, out: (to + to[:1], out), "three workers", "A0 got a packet"),
    "result not to all": (lambda to, out: (to[:2], out), "three workers", "A2 expects a packet, got nothing"),
    "flags lost": (lambda to, out: (to, replace(decode(out), flags=0).encode()), "+Inf of the last worker", "A0 exp"),
    "a bit": (lambda to, out: (to, out[:-1] + bytes([out[-1] ^ 1])), "one lane", "A0 expects"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(name):
    change, case, text = FAULTS[name]
    with closing(ModelSwitch(fault=Fault("complete", change))) as switch:
        failed, _ = failures(switch.address, seeds=0)
    assert text in failed[case]


GROUP = "44 probes, then results come to the group, from the switch's data address, with a TTL of 1"
LOST = "a rank says that it no longer hears the group: results come to each worker"
NOT_HEARD = "a rank hasn't heard all probes: after 5 bursts results come to each worker"


def faults_of_groups(monkeypatch, fault=lambda verdict, to, packet: (to, packet), cases=2):
    chosen = [case for case in golden.read() if case.section == "multicast"][:cases]
    monkeypatch.setattr(run, "cases", lambda limits, seed, exchanges: chosen)
    with closing(ModelSwitch(fault=fault, multicast=True)) as switch:
        return failures(switch.address)[0]


def goes_to_a_group(to):
    return to and to[0][0].startswith("239.")


GROUP_FAULTS = {
    "a result twice": ("complete", lambda to, out: (to * 2, out), "a result goes to the group, once", "doesn't expect"),
    "a lane": ("complete", lambda to, out: (to, out[:-1] + b"\x63"), "a result goes to the group, once", "lane 0: "),
    "a probe is missing": (
        "probe",
        lambda to, out: (to, out) if decode(out).slot != 17 else ((), out),
        GROUP,
        "43 of its 44 probes came here",
    ),
    "probes twice": ("probe", lambda to, out: (to * 2, out), NOT_HEARD, " times, not 5 times"),
    "a full last probe": (
        "probe",
        lambda to, out: (to, replace(decode(out), lanes=(0, 0)).encode()),
        GROUP,
        "the last probe of a burst has 2 lanes",
    ),
    "probes that aren't full": (
        "probe",
        lambda to, out: (to, replace(packet := decode(out), lanes=packet.lanes[:359]).encode()),
        NOT_HEARD,
        "all probes but the last have 360 lanes, as full packets",
    ),
    "probes without the nonce": (
        "probe",
        lambda to, out: (to, replace(decode(out), sequence=0).encode()),
        GROUP,
        "those of a probe, as offered",
    ),
}


SLOW = "a probe is missing"  # it is waited for


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == SLOW else n for n in GROUP_FAULTS])
def test_faults_of_multicast_are_found(monkeypatch, name):
    verdict, change, case, text = GROUP_FAULTS[name]

    def fault(what, to, out):
        applies = what == verdict and goes_to_a_group(to) and (what == "probe" or decode(out).sequence > 8)
        return change(to, out) if applies else (to, out)

    assert text in faults_of_groups(monkeypatch, fault)[case]


def test_a_burst_of_probes_too_many_is_found(monkeypatch):
    monkeypatch.setattr(group_probe, "ROUNDS", 6)
    assert "probes came 6 times, not 5 times" in faults_of_groups(monkeypatch)[NOT_HEARD]


def test_a_switch_that_multicasts_right_passes(monkeypatch):
    assert faults_of_groups(monkeypatch, cases=20) == {}


def test_results_that_also_come_to_each_worker_are_found(monkeypatch):
    workers = set()

    def fault(what, to, out):
        workers.update(to if what == "resend" else ())
        also = tuple(workers) if what == "complete" and goes_to_a_group(to) and decode(out).sequence > 8 else ()
        return tuple(to) + also, out

    assert (
        "got a packet that it doesn't expect"
        in faults_of_groups(monkeypatch, fault)["a result goes to the group, once"]
    )


@pytest.mark.slow
def test_results_to_a_group_that_a_rank_has_lost_are_found(monkeypatch):
    monkeypatch.setattr(ModelDataPlane, "stop_multicast", lambda self, job: None)
    assert "to the group came result: " in faults_of_groups(monkeypatch)[LOST]


def test_a_ttl_that_passes_routers_is_found(monkeypatch):
    group = ModelDataPlane.group

    def far(switch, job, own_address):
        switch._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 2)
        return group(switch, job, own_address)

    monkeypatch.setattr(ModelDataPlane, "group", far)
    assert "a packet with a TTL of 2" in faults_of_groups(monkeypatch)[GROUP]


def test_one_group_for_all_jobs_is_found(monkeypatch):
    group = ModelDataPlane.group
    monkeypatch.setattr(ModelDataPlane, "group", lambda self, job, own_address: group(self, 1, own_address))
    failed = faults_of_groups(monkeypatch)
    assert any("two jobs are offered the same one" in text for text in failed.values())


def test_a_resend_to_all_is_found():
    workers = []

    def change(to, out):
        workers.append(to[0])
        return workers[-2:], out

    with closing(ModelSwitch(fault=Fault("resend", change))) as switch:
        failed, _ = failures(switch.address, seeds=0)
    assert "resend: who asks again after completion gets the result, nobody else" in failed


def test_wrong_counts_are_found(monkeypatch):
    monkeypatch.setattr(ModelDataPlane, "stats", lambda self: {**dict.fromkeys(VERDICTS, 0), "resend": next(counts)})
    counts = itertools.count()
    with closing(ModelSwitch()) as switch:
        failed, _ = failures(switch.address, seeds=0)
    assert "added 0 times, not 1" in failed["two workers: the last one to contribute completes the sum, and all get it"]


@pytest.mark.parametrize("workers", [33, 64])
def test_a_switch_may_take_only_so_many_packets_at_once(monkeypatch, workers):
    """bmv2 holds some 30 frames of a port until it wakes up: the 33rd worker was never heard."""
    monkeypatch.setattr(fences, "ANSWER_S", 0.1)
    with closing(ModelSwitch(ring=32)) as switch, closing(LiveJob(switch.address, workers)) as job:
        assert list(job.fences.everywhere()) == [[]] * workers


def test_steps_leave_room_in_a_small_ring():
    """One worker sends them all, so that none of another one asks for a fence in between."""
    fields = {"job": 3, "epoch": 11, "slot": 8, "lanes": (1,)}
    steps = tuple(Step("A0", Packet(**fields, sequence=sequence).encode(), "") for sequence in range(1, 61))
    exchange = answered_by_model(Exchange("ring", "many steps of one", jobs_of("A1"), steps), Limits())
    with closing(ModelSwitch(ring=24)) as switch, closing(LiveSwitch(switch.address)) as tested:
        assert run.outcome(tested, exchange).failure == ""


def test_numbers_of_no_job():
    assert suite.nobodys(7, {7, 8, 10}) == 9
    assert suite.nobodys(65_535, {65_535, 0}) == 1


def test_a_switch_that_never_answers_cant_be_tested(monkeypatch):
    monkeypatch.setattr(fences, "ANSWER_S", 0.05)
    with (
        closing(ModelSwitch(fault=lambda verdict, to, packet: ((), packet))) as switch,
        pytest.raises(UntestableError, match="silence can't be told"),
    ):
        LiveSwitch(switch.address)


def few_cases(monkeypatch):
    monkeypatch.setattr(run, "cases", lambda limits, seed, exchanges: golden.read()[:3])


def test_packets_from_another_port_are_found(monkeypatch):
    few_cases(monkeypatch)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:

        def from_elsewhere(to, out):
            other.sendto(out, to[0])
            return to, out

        with closing(ModelSwitch(fault=Fault("complete", from_elsewhere))) as switch:
            failed, _ = failures(switch.address)
    assert "; the switch sends from 127.0.0.1:" in failed["a job of one worker: each contribution is its own result"]


def test_results_that_come_again_later_are_found(monkeypatch):
    few_cases(monkeypatch)
    send = ModelDataPlane.send

    def again(switch, to, out):
        with suppress(OSError):  # closed meanwhile
            send(switch, to, out)

    def twice(switch, to, out):
        send(switch, to, out)
        threading.Timer(0.3, again, (switch, to, out)).start()

    monkeypatch.setattr(ModelDataPlane, "send", twice)
    with closing(ModelSwitch()) as switch:
        failed, _ = failures(switch.address)
    assert "within 1 s came result: " in failed[suite.SILENCE]


def told(switch):
    output = io.StringIO()
    with closing(LiveSwitch(switch.address)) as under_test:
        assert run.report(under_test, 0, 0, Console(file=output, width=200))
    return output.getvalue()


def test_what_isnt_compared_is_told(monkeypatch):
    few_cases(monkeypatch)
    with closing(ModelSwitch()) as switch:
        assert "not compared" not in told(switch)
    monkeypatch.setattr(ModelDataPlane, "stats", lambda self: {"added": self._counts["added"]})
    monkeypatch.setattr(ModelDataPlane, "slot_version", lambda self, slot, version: None)
    with closing(ModelSwitch()) as switch:
        text = told(switch)
    assert "not compared in 3 cases: how often it came to complete; it doesn't count that" in text
    assert "not compared in 3 cases: what its slots hold; The switch at" in text
    assert "how often it came to added" not in text


WELCOMES = {
    "lanes_per_chunk is 360 in its welcome to rank 0, 8 in that to rank 1": {"lanes_per_chunk": 8},
    "it numbers its 2 workers 0, 2": {"worker": 2},
}


@pytest.mark.parametrize("text", WELCOMES)
def test_welcomes_that_contradict_each_other_are_found(monkeypatch, text):
    few_cases(monkeypatch)
    encode = messages.encode

    def wrong(message):
        if isinstance(message, messages.Welcome) and message.worker == 1:
            message = msgspec.structs.replace(message, **WELCOMES[text])
        return encode(message)

    monkeypatch.setattr(messages, "encode", wrong)
    with closing(ModelSwitch()) as switch, pytest.raises(UntestableError, match=text):
        failures(switch.address)


@pytest.mark.parametrize("words", [b"x" * 100, b"echo"], ids=["junk", "what was sent"])
def test_a_switch_that_floods_cant_be_tested(monkeypatch, words):
    monkeypatch.setattr(fences, "ANSWER_S", 0.2)
    over = threading.Event()

    def flood(switch, to, out):
        with suppress(OSError):  # closed meanwhile
            while not over.wait(0.0001):
                switch._socket.sendto(out if words == b"echo" else words, to)

    def serve(switch):
        seen = set()
        while (received := switch._socket.recvfrom(65536))[0] != b"close":
            if received[1] not in seen:
                threading.Thread(target=flood, args=(switch, received[1], received[0])).start()
            seen.add(received[1])

    monkeypatch.setattr(ModelDataPlane, "_serve", serve)
    with closing(ModelSwitch()) as switch:
        try:
            with pytest.raises(UntestableError, match="it floods a worker"):
                LiveSwitch(switch.address)
        finally:
            over.set()


FLOODS = {
    "heartbeats": (messages.Heartbeat(), lambda control: joining.ask(control, messages.CountersQuery(), str)),
    "groups": (
        messages.GroupOffer("239.1.2.3", 1, 1, 1, 0),
        lambda control: joining._welcome(control, time.monotonic() + 0.5),
    ),
}


@pytest.mark.parametrize("name", FLOODS)
def test_no_answer_is_waited_for_without_end(monkeypatch, name):
    monkeypatch.setattr(joining, "JOIN_S", 0.5)
    message, wait = FLOODS[name]
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        theirs, _ = server.accept()

        def flood():
            with theirs, suppress(OSError):
                while True:
                    theirs.sendall(messages.encode(message))
                    theirs.setblocking(False)
                    with suppress(BlockingIOError):
                        theirs.recv(65536)
                    theirs.setblocking(True)

        thread = threading.Thread(target=flood)
        thread.start()
        with pytest.raises(TimeoutError):  # in between two messages, or while it waits for the next
            wait(ControlConnection(ours))
        ours.close()
        thread.join(10)
        assert not thread.is_alive()
