"""Key files, and that no two uses of a key have the same derived one."""

import logging
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor

import pytest

from jax_passing.errors import ConfigError
from jax_passing.protocol import keys, secure_channel


def test_a_key_file(tmp_path):
    key = keys.new_key()
    (file := tmp_path / "switch.key").write_text(keys.key_line(keys.SWITCH, key))
    file.chmod(0o600)
    assert keys.read_key(file, keys.SWITCH) == key
    with pytest.raises(ConfigError, match=r"has a switch key, but a job key is needed\. Hosts have the key of"):
        keys.read_key(file, keys.JOB)


@pytest.mark.parametrize("content", [b"", b"job", b"job 12\n", b"lock " + 64 * b"a", 65 * b"job ", b"\xff\xfe"])
def test_what_is_no_key_file(tmp_path, content):
    (file := tmp_path / "key").write_bytes(content)
    with pytest.raises(ConfigError, match="is no key file: expected one line|Can't read the key file"):
        keys.read_key(file, keys.JOB)


def test_a_key_file_that_isnt_there(tmp_path):
    with pytest.raises(ConfigError, match="Can't read the key file .*absent"):
        keys.read_key(tmp_path / "absent", keys.JOB)


def test_a_key_file_that_others_can_read(tmp_path, caplog):
    (file := tmp_path / "job.key").write_text(keys.key_line(keys.JOB, keys.new_key()))
    file.chmod(0o640)
    with caplog.at_level(logging.WARNING, "jax_passing"):
        keys.read_key(file, keys.JOB)
    assert "can be read by others than its owner: chmod 600 it" in caplog.text


def test_derived_keys_differ():
    switch = keys.new_key()
    derived = [keys.job_key(switch, name) for name in ("a", "b", "a/shard 1", "")]
    derived += [keys.connection_seed(switch), keys.connection_seed(derived[0])]
    assert len({*derived, switch}) == len(derived) + 1
    assert keys.job_key(switch, "a") == derived[0]
    assert keys.packet_key(derived[0]) != keys.packet_key(derived[1])


def handshake(client_key, server_key):
    """Returns what both ends say of the handshake, and hear of each other."""

    def end(mine, key, *, server_side):
        context = secure_channel.context(key, server_side=server_side)
        with mine:
            mine.settimeout(20)
            with context.wrap_socket(mine, server_side=server_side) as secured:
                secured.sendall(b"hello")
                return secured.recv(5), secured.version()

    one, other = socket.socketpair()
    with ThreadPoolExecutor(1) as pool:
        server = pool.submit(end, other, server_key, server_side=True)
        try:
            return end(one, client_key, server_side=False), server.result()
        except OSError as error:
            assert server.exception() is not None
            raise error from server.exception()


def test_two_with_the_same_key():
    key = keys.new_key()
    assert handshake(key, key) == ((b"hello", "TLSv1.3"), (b"hello", "TLSv1.3"))


def test_two_with_different_keys():
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        handshake(keys.new_key(), keys.new_key())


def test_a_client_without_a_certificate():
    """It would accept any server."""
    key = keys.new_key()
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
    one, other = socket.socketpair()
    with ThreadPoolExecutor(1) as pool, one, other:
        server = pool.submit(secure_channel.context(key, server_side=True).wrap_socket, other, server_side=True)
        with pytest.raises(ssl.SSLError), bare.wrap_socket(one) as secured:
            secured.recv(1)
        with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
            server.result()


@pytest.mark.parametrize("job", ["a", "x" * 128, "\N{SNOWMAN}" * 52, "\N{GRINNING FACE}" * 39, "a.b c/d"])
def test_every_job_has_a_name_that_dns_allows(job):
    name = secure_channel.server_name(job)
    assert len(name) <= 253
    assert all(1 <= len(label) <= 63 and label.isalnum() for label in name.split("."))
    assert secure_channel.job_of(name) == job
    assert secure_channel.server_name(f"{job}/devices") == name  # it has the same key


@pytest.mark.parametrize("name", ["", "a", "a1", "example.org", "74", "a b", "."])
def test_other_names_are_no_jobs(name):
    with pytest.raises(ValueError, match="name"):
        secure_channel.job_of(name)


def test_a_channel_takes_bytes_one_by_one():
    key, asked = keys.new_key(), []
    caller = secure_channel.Channel.caller("a", key)
    callee = secure_channel.Channel.callee(lambda job: asked.append(job) or key)
    while not (caller.is_open and callee.is_open):
        for one, other in ((caller, callee), (callee, caller)):
            for byte in one.take_outgoing():
                assert other.receive(bytes([byte])) == b""
    callee.send(b"x" * 100_000)
    assert caller.receive(callee.take_outgoing()) == b"x" * 100_000
    assert asked == ["a"]


def test_keys_of_masks_and_of_checks():
    nonces = [bytes([rank]) * keys.NONCE_BYTES for rank in range(3)]
    others = [
        of(*given)
        for of in (keys.mask_key, keys.check_key)
        for given in (
            (bytes(32), "a", nonces),
            (b"x" * 32, "a", nonces),
            (bytes(32), "b", nonces),
            (bytes(32), "a", nonces[::-1]),
            (bytes(32), "a", nonces[:2]),
        )
    ]
    assert len(set(others)) == len(others)
    assert {len(one) for one in others} == {keys.MASK_KEY_BYTES} == {keys.CHECK_KEY_BYTES}
    assert keys.mask_key(bytes(32), "a", list(nonces)) == others[0]
    assert keys.digest(bytes(32)) != keys.digest(b"x" * 32)


def test_keys_of_planes_and_of_threads():
    for of, length in ((keys.of_plane, 1000), (keys.of_thread, 16)):
        several = [of(bytes(length), number) for number in range(16)]
        assert several[0] == bytes(length)
        assert len(set(several)) == len(several)
        assert {len(one) for one in several} == {length}
        assert of(bytes(length - 1) + b"x", 1)[:8] != several[1][:8]
    assert keys.pair_of_plane(None, 1) is None
    pair = keys.pair_of_plane((b"a" * 40, b"b" * 40), 1)
    assert pair == (keys.of_plane(b"a" * 40, 1), keys.of_plane(b"b" * 40, 1))
