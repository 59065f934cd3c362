"""Hosts agree on the key of an epoch's masks, which no switch can know or choose."""

from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from jax_passing import config
from jax_passing.config import parse_address, parse_switches
from jax_passing.errors import ConfigError, JoinError
from jax_passing.host import scope
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol import keys
from support.keys import write_key
from support.switch.in_process import Member, SwitchThread, leave, settings_of

OURS, OTHERS = bytes([1]) * keys.KEY_BYTES, bytes([2]) * keys.KEY_BYTES


@pytest.fixture
def mask_keys(monkeypatch):
    """Collects those that hosts make."""
    made = []
    true = keys.mask_key

    def mask_key(*arguments):
        made.append(true(*arguments))
        return made[-1]

    monkeypatch.setattr(keys, "mask_key", mask_key)
    return made


def outcomes(switches, hosts_keys, **changes):
    """Joins a host for each of these keys at the same time. Returns a member, or an error, for each."""

    def join(rank):
        at = switches[rank % len(switches)]
        try:
            settings = settings_of(at, rank, len(hosts_keys), switch=parse_switches(at.address), **changes)
            return Member(settings, hosts_key=hosts_keys[rank])
        except JoinError as error:
            return error

    with ThreadPoolExecutor(len(hosts_keys)) as pool:
        return list(pool.map(join, range(len(hosts_keys))))


def test_each_epoch_has_a_key_of_its_own_that_all_hosts_know(running, mask_keys):
    for _ in range(2):
        leave(outcomes([running], [OURS] * 3))
    first, second = mask_keys[:3], mask_keys[3:]
    assert len(set(first)) == len(set(second)) == 1
    assert first[0] != second[0]


def test_a_tree_brings_the_random_numbers_of_all_hosts(mask_keys):
    spine = SwitchThread()
    racks = [SwitchThread(parent=parse_address(spine.address)) for _ in range(2)]
    leave(outcomes(racks, [OURS] * 4))
    assert len(mask_keys) == 4
    assert len(set(mask_keys)) == 1
    for one in (*racks, spine):
        one.stop()


@pytest.mark.parametrize(
    ("other", "has"), [(OTHERS, keys.digest(OTHERS)), (None, "no hosts' key")], ids=["another", "none"]
)
def test_hosts_without_the_same_key_are_refused_before_any_sum(running, mask_keys, other, has):
    errors = outcomes([running], [OURS, other])
    assert mask_keys == []
    for error in errors:
        assert isinstance(error, JoinError)
        assert has in str(error)
        assert f"rank 0 has {keys.digest(OURS)}" in str(error)
        assert "JAX_PASSING_HOSTS_KEY_FILE" in str(error)
        assert OURS.hex()[:16] not in str(error)


@pytest.mark.parametrize(
    "nonces",
    [lambda own: (), lambda own: (bytes(16), bytes(16)), lambda own: (bytes(16), own, own)],
    ids=["none", "another", "too many"],
)
def test_a_switch_that_keeps_a_hosts_random_number_back(running, monkeypatch, mask_keys, nonces):
    true = messages.encode

    def encode(message):
        if isinstance(message, messages.Welcome):
            message = msgspec.structs.replace(message, host_nonces=nonces(message.host_nonces[0]))
        return true(message)

    monkeypatch.setattr(messages, "encode", encode)
    errors = outcomes([running], [OURS, OURS])
    assert mask_keys == []
    assert any("the random numbers of all hosts, which confidential sums need" in str(error) for error in errors)


def test_a_program_that_wants_confidential_sums_gets_no_others():
    given = {"switch": "10.0.0.1:7171", "job": "a", "rank": 0, "world_size": 1, "confidential": True}
    with pytest.raises(ConfigError, match="JAX_PASSING_HOSTS_KEY_FILE"):
        config.resolve(given, environment={})
    settings, _ = config.resolve(given | {"hosts_key_file": "hosts.key"}, environment={})
    assert settings.confidential
    assert config.resolve({"confidential": True}, environment={})[0].switch is None  # nothing leaves the host


def test_native_is_no_strategy_of_confidential_sums():
    given = {"switch": "10.0.0.1:7171", "job": "a", "rank": 0, "world_size": 2, "strategy": "native"}
    with pytest.raises(ConfigError, match=r"'native' \(argument strategy\).*in the clear.*argument hosts_key_file"):
        config.resolve(given | {"hosts_key_file": "hosts.key"}, environment={})
    assert not scope.of_settings(config.resolve(given, environment={})[0], 2, 0).confidential
    settings, _ = config.resolve(given | {"hosts_key_file": "hosts.key", "confidential": False}, environment={})
    assert not scope.of_settings(settings, 2, 0).confidential
    settings, _ = config.resolve(given | {"hosts_key_file": "hosts.key", "strategy": "auto"}, environment={})
    assert scope.of_settings(settings, 2, 0).confidential


@pytest.mark.parametrize(
    ("hosts_key", "check_sums", "are_checked"),
    [(OURS, None, True), (OURS, False, False), (None, None, False), (None, True, True)],
)
def test_confidential_sums_are_checked_unless_somebody_says_otherwise(
    running, monkeypatch, hosts_key, check_sums, are_checked
):
    made = []
    true = keys.check_key
    monkeypatch.setattr(keys, "check_key", lambda *given: made.append(given[0]) or true(*given))
    leave(outcomes([running], [hosts_key] * 2, check_sums=check_sums))
    assert made == [hosts_key] * 2 * are_checked


def test_a_switch_that_says_its_nonce_again_gets_no_check_key_again(running, monkeypatch):
    made = []
    true_key, true_encode = keys.check_key, messages.encode

    def encode(message):
        if isinstance(message, messages.Welcome):
            message = msgspec.structs.replace(message, nonce=bytes(16))
        return true_encode(message)

    monkeypatch.setattr(messages, "encode", encode)
    monkeypatch.setattr(keys, "check_key", lambda *given: made.append(true_key(*given)) or made[-1])
    for _ in range(2):
        leave(outcomes([running], [OURS] * 2))
    assert made[0] == made[1] != made[2] == made[3]


def test_a_host_without_a_key_joins_no_confidential_sums(running, monkeypatch, mask_keys):
    """The switch, which should say so, doesn't."""
    true = messages.encode

    def encode(message):
        if isinstance(message, messages.Welcome):
            message = msgspec.structs.replace(message, host_nonces=(bytes(16), bytes(16)))
        return true(message)

    monkeypatch.setattr(messages, "encode", encode)
    errors = outcomes([running], [None, None])
    assert mask_keys == []
    assert any("this host has no key for that, which the switch should have noticed" in str(one) for one in errors)


def test_a_key_is_for_its_owner_alone(tmp_path):
    of_hosts = write_key(tmp_path / "hosts.key", keys.HOSTS, OURS)
    with pytest.raises(ConfigError, match="has a hosts' key, but a switch key is needed"):
        keys.read_key(of_hosts, keys.SWITCH)
    of_job = write_key(tmp_path / "job.key", keys.JOB, OURS)
    with pytest.raises(ConfigError, match="has a job key, but a hosts' key is needed"):
        keys.read_key(of_job, keys.HOSTS)
