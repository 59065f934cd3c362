"""`jax-passing key` makes keys for jobs that hosts can join by them, and for no others."""

import pytest

from jax_passing.commands.key import key
from jax_passing.errors import ConfigError
from jax_passing.protocol import keys
from support.keys import write_key


@pytest.fixture
def switch_key(tmp_path):
    return write_key(tmp_path / "switch.key", keys.SWITCH, bytes(32))


def test_a_jobs_key(switch_key, capsys):
    key(switch_key, "train")
    assert capsys.readouterr().out == keys.key_line(keys.JOB, keys.job_key(bytes(32), "train"))


@pytest.mark.parametrize(
    ("job", "reason"),
    [("", "1 to 128 printable"), ("a\n", "1 to 128 printable"), ("é" * 100, "200 bytes"), ("a/shard 1", "is reserved")],
)
def test_a_name_that_no_host_can_join_by(switch_key, job, reason):
    with pytest.raises(ConfigError, match=reason):
        key(switch_key, job)


@pytest.mark.parametrize(("has_file", "job"), [(True, None), (False, "train")])
def test_a_job_without_a_switchs_key_or_the_other_way_round(switch_key, has_file, job):
    with pytest.raises(ConfigError, match="belong together"):
        key(switch_key if has_file else None, job)


def test_a_key_of_hosts(tmp_path, capsys):
    key(hosts=True)
    (file := tmp_path / "hosts.key").write_text(capsys.readouterr().out)
    file.chmod(0o600)
    assert keys.read_key(file, keys.HOSTS) != bytes(32)


def test_a_key_of_hosts_has_nothing_to_do_with_the_switchs(switch_key):
    with pytest.raises(ConfigError, match="leave out --switch-key"):
        key(switch_key, "train", hosts=True)
