"""Hosts and strangers at a switch that has a key, over real sockets."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from in_process import JOB, SwitchThread, members, settings_of, until

from jax_passing.config import parse_address, parse_switches
from jax_passing.errors import AuthenticationError, JoinError, PassingError
from jax_passing.host.control_connection import ControlConnection
from jax_passing.host.gathering import Gathering
from jax_passing.host.membership import Membership
from jax_passing.host.tls_socket import TlsSocket
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol import keys, secure_channel


def write_key(file, kind, key):
    file.touch(mode=0o600)
    file.write_text(keys.key_line(kind, key))
    return file


class KeyFiles:
    """A switch's, and those of jobs."""

    def __init__(self, folder):
        self._folder = folder
        self._key = keys.new_key()
        self.switch = write_key(folder / "switch.key", keys.SWITCH, self._key)

    def job(self, name=JOB):
        return write_key(self._folder / f"{name}.key", keys.JOB, keys.job_key(self._key, name))


@pytest.fixture
def files(tmp_path):
    return KeyFiles(tmp_path)


@pytest.fixture
def secured(files):
    one = SwitchThread(key_file=files.switch)
    yield one
    one.stop()


def leave(several):
    for member in several:
        member.leave()
    for member in several:
        member.await_others(time.monotonic() + 20)
        member.close()


def test_hosts_with_the_jobs_key(secured, files):
    several = members(secured, 3, key_file=files.job())
    welcomes = [member._shards[0].welcome for member in several]
    assert len({welcome.contribution_secret for welcome in welcomes}) == 3
    assert len({welcome.result_secret for welcome in welcomes}) == 1
    # The connection carries large messages both ways, at once.
    payload = messages.RELAYED_PROGRAM + b"?" * 100_000
    several[0]._shards[0].send(messages.Relay(payload))
    until(lambda: several[1].failure is not None)  # it makes no sense to them: it came through whole
    assert "ProtocolError" not in several[1].failure.kind
    for member in several:
        member.close()


def test_every_epoch_has_secrets_of_its_own(secured, files):
    seen = set()
    for _ in range(2):
        several = members(secured, key_file=files.job())
        welcome = several[0]._shards[0].welcome
        seen |= {welcome.contribution_secret, welcome.result_secret}
        leave(several)
    assert len(seen) == 4


def refusal(running, **changes):
    with pytest.raises(JoinError) as caught:
        Membership(settings_of(running, 0, join_deadline_s=5.0, **changes))
    assert isinstance(caught.value, AuthenticationError)
    return str(caught.value)


def test_a_host_without_a_key(secured):
    text = refusal(secured)
    assert f"The switch at {secured.address} wants the key of job 'test'. Who runs the switch prints it by" in text


def test_a_host_with_another_jobs_key(secured, files):
    assert "doesn't have the key of job 'test' that this host has" in refusal(secured, key_file=files.job("other"))


def test_a_host_with_a_key_speaks_to_no_switch_without(files):
    plain = SwitchThread()
    try:
        assert "wants none. Either it was started without --key-file, or" in refusal(plain, key_file=files.job())
    finally:
        plain.stop()


def test_devices_join_with_their_jobs_key(secured, files):
    joined = Membership(settings_of(secured, 0, 1, job=f"{JOB}/devices", key_file=files.job()))
    joined.close()


class Stranger:
    """Speaks to the switch without a key, or with one that it shouldn't have."""

    def __init__(self, running):
        self.connection = ControlConnection(socket.create_connection(parse_address(running.address), timeout=20))
        self.hello = self.connection.receive()

    def join(self, job=JOB):
        return messages.Join(
            messages.PROTOCOL_VERSION, job, 0, 2, (self.hello.instance,), 1000, "stranger", join_deadline_s=5.0
        )


def test_a_join_without_a_key_is_refused(secured):
    stranger = Stranger(secured)
    stranger.connection.send(stranger.join())
    answer = stranger.connection.receive()
    assert isinstance(answer, messages.Refused)
    assert "This switch wants the key of job 'test'" in answer.message
    stranger.connection.close()


def test_the_key_of_one_job_opens_no_other(secured, files):
    stranger = Stranger(secured)
    stranger.connection.secure(keys.read_key(files.job("mine"), keys.JOB), "mine", until=None)
    stranger.connection.send(stranger.join("yours"))
    answer = stranger.connection.receive()
    assert isinstance(answer, messages.Refused)
    assert answer.message == "The key of job 'mine' doesn't open job 'yours'."
    stranger.connection.close()


@pytest.mark.parametrize("words", [b"garbage" * 100, b"\x16\x03\x01\xff\xff"], ids=["text", "a long record"])
def test_garbage_instead_of_a_handshake(secured, files, words):
    stranger = Stranger(secured)
    stranger.connection.send(messages.Secure(JOB))
    assert isinstance(stranger.connection.receive(), messages.Secured)
    stranger.connection._socket.sendall(words)
    stranger.connection.hang_up()
    stranger.connection.close()
    leave(members(secured, key_file=files.job()))  # the switch serves others
    secured.stop()
    assert secured.counters["connections_without_key"] == 1


def test_secure_twice(secured, files):
    stranger = Stranger(secured)
    stranger.connection.secure(keys.read_key(files.job(), keys.JOB), JOB, until=None)
    stranger.connection.send(messages.Secure(JOB))
    with pytest.raises(ConnectionError):
        stranger.connection.receive()
    stranger.connection.close()


def test_a_tree_of_switches_with_one_key(files):
    spine = SwitchThread(key_file=files.switch)
    racks = [SwitchThread(key_file=files.switch, parent=parse_address(spine.address)) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        settings = [
            settings_of(rack, rank, switch=parse_switches(rack.address), key_file=files.job())
            for rank, rack in enumerate(racks)
        ]
        several = list(pool.map(Membership, settings))
    for member in several:
        member.start()
    secrets = [member._shards[0].welcome.result_secret for member in several]
    assert None not in secrets
    assert secrets[0] != secrets[1]  # of each switch its own
    leave(several)
    for switch in (*racks, spine):
        switch.stop()


@pytest.mark.parametrize("of_spine", ["none", "another"])
def test_a_tree_whose_switches_have_different_keys(files, tmp_path, of_spine):
    other = write_key(tmp_path / "other.key", keys.SWITCH, keys.new_key())
    spine = SwitchThread(key_file=None if of_spine == "none" else other)
    rack = SwitchThread(key_file=files.switch, parent=parse_address(spine.address))
    try:
        with pytest.raises(PassingError, match="start (both|all switches of a tree) with the same --key-file"):
            Membership(settings_of(rack, 0, key_file=files.job(), join_deadline_s=2.0))
    finally:
        rack.stop()
        spine.stop()


def test_tls_for_one_that_receives_and_several_that_send():
    """Every line arrives whole, both ways at once."""
    key = keys.new_key()
    one, other = socket.socketpair()
    for end in (one, other):
        end.settimeout(30)
    with ThreadPoolExecutor(1) as pool:
        server = pool.submit(secure_channel.context(key, server_side=True).wrap_socket, other, server_side=True)
        mine = TlsSocket(one, secure_channel.context(key, server_side=False))
        theirs = server.result()
    lines = 200
    expected = {f"{sender} {line}" for sender in range(3) for line in range(lines)}

    def send(sender):
        for line in range(lines):
            mine.sendall(f"{sender} {line}".encode() + b"." * 5000 + b"\n")

    def echo():
        count = 0
        while count < 3 * lines:
            data = theirs.recv(65536)
            count += data.count(b"\n")
            theirs.sendall(data)

    threads = [threading.Thread(target=send, args=(sender,)) for sender in range(3)] + [threading.Thread(target=echo)]
    for thread in threads:
        thread.start()
    received = b""
    while received.count(b"\n") < 3 * lines:
        received += mine.recv(65536)
    for thread in threads:
        thread.join()
    assert {line.rstrip(".") for line in received.decode().splitlines()} == expected
    theirs.close()
    assert mine.recv(1) == b""
    mine.close()


def meet(switch, rank, key_file, world_size=2):
    settings = settings_of(switch, rank, world_size, key_file=key_file, world_size_min=world_size)
    gathering = Gathering(settings, f"host {rank}")
    try:
        return gathering.meet([0], None, (), time.monotonic() + 20)[1]
    finally:
        gathering.close()


def test_hosts_meet_by_the_jobs_key_through_all_switches_of_a_tree(secured, files):
    rack = SwitchThread(key_file=files.switch, parent=parse_address(secured.address))
    try:
        with ThreadPoolExecutor(2) as pool:
            met = list(pool.map(meet, (secured, rack), range(2), [files.job()] * 2))
        assert [one.rank for one in met] == [0, 1]
    finally:
        rack.stop()


def test_nobody_meets_without_the_jobs_key(secured, files):
    with pytest.raises(AuthenticationError, match="wants the key"):
        meet(secured, 0, None, 1)
    with pytest.raises(AuthenticationError, match="doesn't have the key"):
        meet(secured, 0, files.job("another"), 1)
    stranger = socket.create_connection(parse_address(secured.address), timeout=10)
    with stranger, stranger.makefile("rb") as lines:
        lines.readline()
        gather = messages.Gather(messages.PROTOCOL_VERSION, JOB, "i", 0, 1, 1, 10.0)
        stranger.sendall(messages.encode(gather))
        refused = messages.decode_from_switch(lines.readline())
    assert isinstance(refused, messages.Refused)
    assert "wants the key" in refused.message
