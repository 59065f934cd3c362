"""The checks for switches with a key find what is wrong."""

import io
import ssl
from contextlib import closing

import pytest
from rich.console import Console
from typer.testing import CliRunner

from jax_passing.commands import cli
from jax_passing.config import parse_address
from jax_passing.conformance import run
from jax_passing.conformance.live import key_checks
from jax_passing.conformance.live.suite import LiveSwitch
from jax_passing.protocol import keys, secure_channel
from jax_passing.switch.server import member_conversation
from support.switch.in_process import SwitchThread
from support.switch.live_suite import KEY, failures, only
from support.switch.model_switch import ModelSwitch


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
    only(monkeypatch, "two workers", key_checks.SECTION)
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
    bare = secure_channel._bare_context

    def without_proof(*, server_side):
        made = bare(server_side=server_side)
        if server_side:
            made.verify_mode = ssl.CERT_NONE
        return made

    monkeypatch.setattr(secure_channel, "_bare_context", without_proof)
    monkeypatch.setattr(secure_channel, "_callee_context", secure_channel._callee_context.__wrapped__)
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
