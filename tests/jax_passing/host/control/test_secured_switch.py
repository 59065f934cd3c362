"""Hosts and strangers at a switch that has a key, over real sockets."""

import os
import socket
import ssl
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial

import jax
import msgspec
import pytest

import jax_passing
from jax_passing.config import Settings, parse_address, parse_switches
from jax_passing.errors import AuthenticationError, ConfigError, JoinError, SwitchUnreachableError
from jax_passing.host.control.control_connection import ControlConnection
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol import keys, secure_channel
from support.keys import write_key
from support.switch.in_process import JOB, Guest, Member, SwitchThread, leave, members, settings_of, until


class Keyring:
    """A switch's, in a file, and those of jobs."""

    def __init__(self, folder):
        self._of_switch = keys.new_key()
        self.switch_file = write_key(folder / "switch.key", keys.SWITCH, self._of_switch)

    def job(self, name=JOB):
        return keys.job_key(self._of_switch, name)


@pytest.fixture
def keyring(tmp_path):
    return Keyring(tmp_path)


@pytest.fixture
def secured(keyring):
    one = SwitchThread(key_file=keyring.switch_file)
    yield one
    one.stop()


def test_hosts_with_the_jobs_key(secured, keyring):
    several = members(secured, 3, key=keyring.job())
    welcomes = [member.welcomes[0] for member in several]
    assert len({welcome.contribution_secret for welcome in welcomes}) == 3
    assert len({welcome.result_secret for welcome in welcomes}) == 1
    # The connection carries large messages both ways, at once.
    payload = messages.RELAYED_PROGRAM + b"?" * 100_000
    several[0].send(0, messages.Relay(payload))
    until(lambda: several[1].failure is not None)  # it makes no sense to them: it came through whole
    assert "ProtocolError" not in several[1].failure.kind
    for member in several:
        member.close()


def test_every_epoch_has_secrets_of_its_own(secured, keyring):
    seen = set()
    for _ in range(2):
        several = members(secured, key=keyring.job())
        welcome = several[0].welcomes[0]
        seen |= {welcome.contribution_secret, welcome.result_secret}
        leave(several)
    assert len(seen) == 4


def refusal(running, key=None):
    with pytest.raises(JoinError) as caught:
        Member(settings_of(running, 0, join_deadline_s=5.0), key=key)
    assert isinstance(caught.value, AuthenticationError)
    return str(caught.value)


def test_a_host_without_a_key(secured):
    text = refusal(secured)
    assert f"The switch at {secured.address} wants the key of job 'test'. Who runs the switch prints it by" in text


def test_a_host_with_another_jobs_key(secured, keyring):
    assert "doesn't have the key of job 'test' that this host has" in refusal(secured, key=keyring.job("other"))


def test_a_host_with_a_key_speaks_to_no_switch_without(keyring):
    plain = SwitchThread()
    try:
        assert "wants none. Either it was started without --key-file, or" in refusal(plain, key=keyring.job())
    finally:
        plain.stop()


def test_devices_join_with_their_jobs_key(secured, keyring):
    joined = Member(settings_of(secured, 0, 1, job=f"{JOB}/devices"), key=keyring.job())
    joined.close()


def test_a_session_reads_its_key_once(secured, keyring):
    """So all its devices have the same one, and it joins again when the file is gone. A pipe can be read only once."""
    reading, writing = os.pipe()
    os.write(writing, keys.key_line(keys.JOB, keyring.job()).encode())
    os.close(writing)
    elastic = {"rank": 0, "world_size": 1, "world_size_min": 1, "strategy": "flat"}
    with jax_passing.init(secured.address, job=JOB, key_file=f"/proc/self/fd/{reading}", **elastic) as session:
        assert session.device_ranks == len(jax.local_devices()) > 1
        assert session.rejoin(1) == 1
    os.close(reading)


def call(running, key=None, job=JOB):
    return ControlConnection(parse_address(running.address), key=key, job=job, deadline_s=20.0)


class Stranger:
    """Speaks to the switch in plain text, though it wants a key."""

    def __init__(self, running):
        self.socket = socket.create_connection(parse_address(running.address), timeout=20)
        self._lines = self.socket.makefile("rb")

    def say(self, message):
        self.socket.sendall(messages.encode(message))

    def hear(self):
        return messages.decode_from_switch(self._lines.readline())

    def close(self):
        self._lines.close()
        self.socket.close()


def join_of(job=JOB):
    return messages.Join(messages.PROTOCOL_VERSION, job, 0, 2, ("x",), 1000, "stranger", join_deadline_s=5.0)


@pytest.mark.parametrize("is_patient", [False, True], ids=["joins at once", "waits for the greeting"])
def test_a_join_without_a_key_is_refused(secured, is_patient):
    with closing(Stranger(secured)) as stranger:
        said = [stranger.hear()] if is_patient else []
        stranger.say(join_of())
        greeting, answer = *said, *(stranger.hear() for _ in range(2 - len(said)))
        assert greeting.secured
        assert isinstance(answer, messages.Refused)
        assert "This switch wants the key of job 'test'" in answer.message


def test_the_key_of_one_job_opens_no_other(secured, keyring):
    with closing(call(secured, keyring.job("mine"), "mine")) as connection:
        connection.send(join_of("yours"))
        answer = connection.receive(time.monotonic() + 20)
    assert isinstance(answer, messages.Refused)
    assert answer.message == "The key of job 'mine' doesn't open job 'yours'."


@pytest.mark.parametrize("job", ["x" * 128, "\N{SNOWMAN}" * 52, "a.b c/d:é"])
def test_any_name_of_a_job_that_is_short_enough(secured, keyring, job):
    with closing(call(secured, keyring.job(job), job)) as connection:
        assert connection.hello.secured


def test_a_name_that_is_too_long_for_a_key(secured, keyring):
    with pytest.raises(ConfigError, match="takes 159 bytes in UTF-8. That of a job with a key may take 156"):
        call(secured, keys.new_key(), "\N{SNOWMAN}" * 53)


@pytest.mark.parametrize("words", [b"\x16\x03\x01\xff\xff", b"\x16" + b"garbage" * 100], ids=["a long record", "text"])
def test_garbage_instead_of_a_handshake(secured, keyring, words):
    with socket.create_connection(parse_address(secured.address), timeout=20) as stranger:
        stranger.sendall(words)
        while stranger.recv(4096):  # an alert, then the end
            pass
    leave(members(secured, key=keyring.job()))  # the switch serves others
    secured.stop()
    assert secured.counters["connections_without_key"] == 1


def test_a_handshake_that_names_no_job(secured, keyring):
    context = secure_channel.context(keyring.job(), server_side=False)
    for name in (None, "example.org", "a1"):
        plain = socket.create_connection(parse_address(secured.address), timeout=20)
        with plain, pytest.raises(ssl.SSLError, match="UNRECOGNIZED_NAME"):
            context.wrap_socket(plain, server_hostname=name)
    secured.stop()
    assert secured.counters["connections_without_key"] == 3


def test_a_handshake_that_begins_late_is_tried_again(secured, keyring):
    """The switch has taken the caller for one without a key by then, and has greeted it in plain text."""
    with closing(Stranger(secured)) as late:
        assert late.hear().secured
        late.socket.sendall(secure_channel.Channel.caller(JOB, keyring.job()).take_outgoing())
        assert late.socket.recv(1) == b""


def test_a_tree_of_switches_with_one_key(keyring):
    spine = SwitchThread(key_file=keyring.switch_file)
    racks = [SwitchThread(key_file=keyring.switch_file, parent=parse_address(spine.address)) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        settings = [settings_of(rack, rank, switch=parse_switches(rack.address)) for rank, rack in enumerate(racks)]
        several = list(pool.map(partial(Member, key=keyring.job()), settings))
    secrets = [member.welcomes[0].result_secret for member in several]
    assert None not in secrets
    assert secrets[0] != secrets[1]  # of each switch its own
    leave(several)
    for switch in (*racks, spine):
        switch.stop()


def meet(switch, rank, key, world_size=2):
    settings = settings_of(switch, rank, world_size, world_size_min=world_size)
    with closing(Guest(settings, f"host {rank}", key)) as guest:
        return guest.meet()[1]


def test_hosts_meet_by_the_jobs_key_through_all_switches_of_a_tree(secured, keyring):
    rack = SwitchThread(key_file=keyring.switch_file, parent=parse_address(secured.address))
    try:
        with ThreadPoolExecutor(2) as pool:
            met = list(pool.map(meet, (secured, rack), range(2), [keyring.job()] * 2))
        assert [one.rank for one in met] == [0, 1]
    finally:
        rack.stop()


def test_nobody_meets_without_the_jobs_key(secured, keyring):
    with pytest.raises(AuthenticationError, match="wants the key"):
        meet(secured, 0, None, 1)
    with pytest.raises(AuthenticationError, match="doesn't have the key"):
        meet(secured, 0, keyring.job("another"), 1)
    with closing(Stranger(secured)) as stranger:
        stranger.say(messages.Meet(messages.PROTOCOL_VERSION, JOB, "i", 0, 1, 1, 10.0))
        stranger.hear()
        refused = stranger.hear()
    assert isinstance(refused, messages.Refused)
    assert "wants the key" in refused.message


class Impostor:
    """Says this to whoever connects, once the other has begun; then does what `then` does with the socket."""

    def __init__(self, *lines, then=lambda connected: None):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()[:2]
        self.heard = b""
        self._thread = threading.Thread(target=self._serve, args=(lines, then), daemon=True)
        self._thread.start()

    def _serve(self, lines, then):
        with self._listener, self._listener.accept()[0] as connected:
            connected.settimeout(20)
            self.heard += connected.recv(65536)
            for line in lines:
                connected.sendall(messages.encode(line))
            then(connected)
            with suppress(OSError):
                while piece := connected.recv(65536):
                    self.heard += piece

    def end(self):
        self._thread.join(20)


def join_impostor(impostor, deadline_s):
    settings = Settings(switch=(impostor.address,), job=JOB, rank=0, world_size=2, join_deadline_s=deadline_s)
    Member(settings, key=keys.new_key()).close()


HELLO = messages.Hello(messages.PROTOCOL_VERSION, "", 7171, "s", secured=True)


def test_a_host_with_a_key_says_nothing_but_its_job_to_a_switch_of_another_version():
    impostor = Impostor(msgspec.structs.replace(HELLO, protocol_version=messages.PROTOCOL_VERSION + 1))
    with pytest.raises(JoinError, match="protocol version"):
        join_impostor(impostor, 2.0)
    impostor.end()
    assert impostor.heard[0] == 0x16
    (length,) = struct.unpack(">H", impostor.heard[3:5])
    assert len(impostor.heard) == 5 + length  # one record of TLS


def test_a_switch_that_hangs_up_in_the_handshake_is_tried_again():
    impostor = Impostor(then=lambda connected: connected.shutdown(socket.SHUT_RDWR))
    with pytest.raises(SwitchUnreachableError):
        join_impostor(impostor, 1.0)
