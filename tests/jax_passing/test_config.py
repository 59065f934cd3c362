"""A host's settings: arguments win over variables, and these over a file; errors name the source of a mistake."""

import json
import re
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_passing import config
from jax_passing.errors import ConfigError
from jax_passing.switch.server.settings import SwitchSettings


def resolve(arguments=None, file=None, environment=None, cluster=None):
    return config.resolve(arguments or {}, file, environment=environment or {}, process_in_cluster=lambda: cluster)


@pytest.fixture
def toml(tmp_path):
    def write(text):
        path = tmp_path / "passing.toml"
        path.write_text(text)
        return path

    return write


def test_one_host_without_any_setting():
    settings, sources = resolve()
    assert settings == config.Settings()
    assert (settings.switch, settings.rank, settings.world_size) == (None, 0, 1)
    assert set(sources.values()) == {"default"}


@pytest.mark.parametrize(
    ("given", "lease_s"), [({}, 30.0), ({"world_size_min": 1}, 1.0), ({"world_size_min": 1, "lease_s": 7}, 7.0)]
)
def test_only_those_that_survive_a_false_alarm_have_a_short_lease(given, lease_s):
    assert resolve(given)[0].lease == lease_s


def test_arguments_win_over_variables_over_the_file(toml):
    file = toml('switch = "a:1"\njob = "file"\nwarn_s = 1\ndeadline_s = 1')
    environment = {
        "JAX_PASSING_JOB": "variable",
        "JAX_PASSING_WARN_S": "2",
        "JAX_PASSING_RANK": "1",
        "JAX_PASSING_WORLD_SIZE": "2",
        "HOME": "/",
    }
    settings, sources = resolve({"warn_s": 3, "rank": None}, file, environment)
    assert (settings.deadline_s, settings.job, settings.warn_s) == (1.0, "variable", 3.0)
    assert (settings.switch, settings.rank, settings.world_size) == ((("a", 1),), 1, 2)
    assert sources["deadline_s"] == f"file {file}"
    assert sources["job"] == "variable JAX_PASSING_JOB"
    assert sources["warn_s"] == "argument warn_s"
    assert sources["join_deadline_s"] == "default"


def test_numbers_may_be_text_or_of_numpy():
    switch = {"switch": "s:1", "job": "a"}
    text = resolve({**switch, "rank": " 1", "world_size": "2", "warn_s": "1e1"})[0]
    assert text == resolve({**switch, "rank": np.int64(1), "world_size": np.uint8(2), "warn_s": np.float32(10)})[0]
    assert (text.rank, text.world_size, text.warn_s) == (1, 2, 10.0)


def test_a_host_ignores_variables_of_switches_and_of_kubernetes():
    switch = {"JAX_PASSING_SWITCH_LISTEN": "0.0.0.0:1", "JAX_PASSING_SWITCH_LINK_GBIT": "fast"}
    assert resolve(environment=switch)[0] == config.Settings()
    assert sorted([*(field.name for field in fields(SwitchSettings)), "config"]) == list(config.SWITCH_SETTINGS)
    with pytest.raises(
        ConfigError, match="Unknown variable JAX_PASSING_SWITCH_ADDRESS"
    ):  # a mistyped variable of a host
        resolve(environment={"JAX_PASSING_SWITCH_ADDRESS": "10.0.0.1:7171"})
    service = {
        "JAX_PASSING_SERVICE_HOST": "10.0.0.1",
        "JAX_PASSING_SERVICE_PORT_HTTP": "80",
        "JAX_PASSING_PORT": "tcp://10.0.0.1:80",
        "JAX_PASSING_PORT_80_TCP_ADDR": "10.0.0.1",
    }
    assert resolve(environment={**service, "KUBERNETES_SERVICE_HOST": "10.0.0.2"})[0] == config.Settings()
    for name, text in service.items():
        with pytest.raises(ConfigError, match=f"Unknown variable {name}"):
            resolve(environment={name: text})


def test_the_file_may_come_from_a_variable(toml):
    file = toml('job = "named"')
    assert resolve(environment={"JAX_PASSING_CONFIG": str(file)})[0].job == "named"


def test_rank_and_world_size_come_from_the_cluster_if_given_nowhere():
    switch = {"switch": "s:1", "job": "a"}
    assert resolve(switch, cluster=(2, 4, "slurm"))[0].rank == 2
    settings, sources = resolve({**switch, "rank": 1}, cluster=(2, 4, "slurm"))
    assert (settings.rank, settings.world_size, sources["world_size"]) == (1, 4, "slurm")
    given = {**switch, "rank": 1, "world_size": 3}
    assert resolve(given, cluster=(2, 4, "slurm"))[0].world_size == 3


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        ({"switch": "nowhere"}, {}, r"'nowhere' of switch \(argument switch\).*HOST:PORT"),
        ({"switch": "host:0"}, {}, "port from 1"),
        ({"switch": "a:1;b:2"}, {}, "with commas; got 'a:1;b:2'"),
        ({"switch": "[::1:5"}, {}, "expected HOST:PORT"),
        ({"deadline_s": "soon"}, {}, "expected seconds"),
        ({"link_gbit": "fast"}, {}, "expected Gbit/s"),
        ({"switch": "a:1,b"}, {}, "expected HOST:PORT, .* or several of them with commas; got 'b'"),
        ({"switch": "a:1,,b:1"}, {}, "with commas; got ''"),
        ({"switch": "a:1,"}, {}, "with commas; got ''"),
        ({"switch": "a:1,b:0"}, {}, "port from 1 to 65535, or several of them with commas; got 'b:0'"),
        ({"switch": "a:1,b:1, a:1"}, {}, "expected each switch once; a:1 is there twice"),
        ({"switch": ",".join(f"a:{port}" for port in range(1, 66))}, {}, "at most 64 switches; got 65"),
        ({"switch": ["a:1", "b:1"]}, {}, "with commas"),
        ({}, {"JAX_PASSING_SWITCH": "host:99999"}, r"variable JAX_PASSING_SWITCH"),
        ({"rank": -1}, {}, "rank.*from 0 to 1023"),
        ({"rank": "one"}, {}, r"argument rank"),
        ({"rank": True}, {}, "rank"),
        ({"rank": 1.0}, {}, "from 0 to 1023"),
        (
            {},
            {"JAX_PASSING_WORLD_SIZE": "null"},
            "'null' of world_size .variable .*1 to 1024",
        ),
        ({}, {"JAX_PASSING_LINK_GBIT": "null"}, "expected Gbit/s"),
        ({"job": "run/shard 1"}, {}, "'/shard ' is reserved for the shards"),
        ({"job": "run/doctor 17"}, {}, "'/doctor ' is reserved for the trials"),
        ({"job": "a" * 300}, {}, r"Bad value 'a{199}… of job"),
        ({"world_size": 1025}, {}, "1 to 1024"),
        ({"deadline_s": 0}, {}, "above 0"),
        ({"deadline_s": float("nan")}, {}, "above 0"),
        ({"deadline_s": []}, {}, "expected seconds"),
        ({"axis_name": "d,,i"}, {}, r"without commas; got ''"),
        ({"axis_name": ("d", "a,b")}, {}, r"without commas; got 'a,b'"),
        ({"axis_name": ["d", "i", "d"]}, {}, "each axis once; 'd' is there twice"),
        ({"axis_name": "a\nb"}, {}, "printable"),
        ({"axis_name": ["d", 1]}, {}, "the name of an axis, or several"),
        ({"axis_name": 3}, {}, "the name of an axis, or several"),
        ({"axis_name": "d" * 257}, {}, "at most 256 characters"),
        ({}, {"JAX_PASSING_AXIS_NAME": "d,d"}, r"variable JAX_PASSING_AXIS_NAME.*each axis once"),
        ({"job": ""}, {}, "1 to 128"),
        ({"job": {}}, {}, "1 to 128"),
        ({"job": "a\nb"}, {}, "printable"),
        ({"job": "a/devices"}, {}, "expected another name: '/devices' at the end is reserved"),
        (
            {},
            {"JAX_PASSING_DEADLINE": "1"},
            "Unknown variable JAX_PASSING_DEADLINE. Did you mean JAX_PASSING_DEADLINE_S",
        ),
        ({"strategy": "fast"}, {}, "one of passing, flat, native, auto"),
        ({"strategy": ["auto"]}, {}, "one of passing"),
        ({}, {"JAX_PASSING_LINK_GBIT": "0"}, "above 0"),
        ({"link_gbit": [1]}, {}, "above 0"),
        ({"link_gbit": float("nan")}, {}, "above 0"),
        ({"wrold_size": 2}, {}, "Did you mean world_size"),
        ({}, {"JAX_PASSING_WIRE": "int8"}, "JAX_PASSING_WIRE. Did you mean JAX_PASSING_WIRE_DTYPE"),
        ({"wire": "int8"}, {}, "Did you mean wire_dtype"),
        ({"world_size": 2, "rank": 0}, {}, "needs a switch"),
        ({"switch": "s:1"}, {}, "but nothing gives rank and world_size, and no launcher.*`jax-passing run`"),
        ({"switch": "s:1"}, {"SLURM_JOB_ID": "7"}, "nothing gives rank .*Slurm's job 7 .*`srun python ...`"),
        ({"switch": "s:1", "rank": 0}, {}, "but nothing gives world_size, and no launcher"),
        (
            {"switch": "s:1", "rank": 0, "world_size": 1},
            {},
            "but nothing gives job: .* or set JAX_PASSING_JOB=NAME",
        ),
        ({}, {"PBS_JOBID": "a\nb"}, r"job \(variable PBS_JOBID\): expected a name"),
        ({"switch": "s:1", "rank": 2, "world_size": 2, "job": "a"}, {}, "Rank 2 .* isn't below the world size 2"),
        ({"rank": 1}, {}, "isn't below"),
    ],
)
def test_mistakes_name_setting_and_source(arguments, environment, message):
    with pytest.raises(ConfigError, match=message):
        resolve(arguments, environment=environment)


@pytest.mark.parametrize("who", ["jax.distributed", "SlurmCluster, as JAX detects"])
def test_a_world_of_one_that_nobody_asked_for_is_an_error(who):
    """Each of several processes may be the only one in the eyes of a launcher that doesn't know of the others."""
    switch = {"switch": "s:1", "job": "a"}
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    with pytest.raises(ConfigError, match=rf"argument switch.*only one \({who}\).* set JAX_PASSING_WORLD_SIZE=1"):
        resolve(switch, cluster=(0, 1, who))
    with pytest.raises(ConfigError, match="--ntasks=HOSTS"):
        resolve({**switch, "rank": 0}, environment=step, cluster=(0, 1, who))
    assert resolve(cluster=(0, 1, who))[0].world_size == 1  # there is no switch
    for asked in ({"world_size": 1}, {"world_size": 1, "rank": 0}):
        assert resolve({**switch, **asked}, cluster=(0, 1, who))[0].world_size == 1


def test_a_world_of_one_needs_no_rank():
    settings, sources = resolve({"switch": "s:1", "job": "a"}, environment={"JAX_PASSING_WORLD_SIZE": "1"})
    assert (settings.rank, settings.world_size, sources["rank"]) == (0, 1, "variable JAX_PASSING_WORLD_SIZE")
    with pytest.raises(ConfigError, match="Rank 3 .slurm. isn't below the world size 1"):
        resolve({"switch": "s:1", "job": "a", "world_size": 1}, cluster=(3, 4, "slurm"))


def test_a_cluster_without_a_switch_says_how_to_get_one():
    with pytest.raises(ConfigError, match=r"4 ranks \(slurm\) needs a switch.*JAX_PASSING_SWITCH"):
        resolve(cluster=(0, 4, "slurm"))


def test_bad_files(toml, tmp_path):
    with pytest.raises(ConfigError, match=r"Unknown setting 'ranks' \(file .*passing\.toml\)\. Did you mean rank"):
        resolve(file=toml("ranks = 1"))
    with pytest.raises(ConfigError, match="argument config"):
        resolve(file=toml("rank = "))
    with pytest.raises(ConfigError, match="JAX_PASSING_CONFIG"):
        resolve(environment={"JAX_PASSING_CONFIG": str(tmp_path / "missing.toml")})
    with pytest.raises(ConfigError, match=r"Can't read the settings file .*passing\.toml"):
        resolve(file=toml("axis_name = " + "[" * 1000))


@pytest.mark.parametrize(
    ("text", "address"),
    [("host:1", ("host", 1)), ("10.0.0.1:7171", ("10.0.0.1", 7171)), ("[::1]:80", ("::1", 80)), ("a:0", ("a", 0))],
)
def test_addresses(text, address):
    assert config.parse_address(text) == address


def test_a_port_alone_is_of_this_machine():
    assert config.parse_local("9471") == ("127.0.0.1", 9471)
    assert config.parse_local("[::]:9471") == ("::", 9471)
    for wrong in ("host", "123456", "a..b:1", ""):
        with pytest.raises(ValueError, match="expected PORT, which only this machine reaches, or HOST:PORT"):
            config.parse_local(wrong)


@pytest.mark.parametrize("text", ["a..b:1", ".a:1", "a" * 64 + ":1"])
def test_names_that_no_resolver_takes(text):
    with pytest.raises(ValueError, match="expected HOST:PORT"):
        config.parse_address(text)


def test_a_peer_is_not_named_by_an_address_of_one_link():
    assert config.parse_address("[fe80::1%eth0]:7171") == ("fe80::1%eth0", 7171)
    with pytest.raises(ValueError, match="valid beyond one link"):
        config.parse_peer("[FE80::1%eth0]:7171")
    with pytest.raises(ConfigError, match="valid beyond one link"):
        resolve({"switch": "a:1,[fe80::1%eth0]:7171", "rank": 0, "world_size": 1, "job": "a"})


@pytest.mark.parametrize("host", ["10.0.0.1", "::1", "fe80::1%eth0", "::ffff:10.0.0.1"])
def test_addresses_of_one_machine(host):
    assert config.unicast_address(host) == host


@pytest.mark.parametrize(
    "host", ["", "localhost", "1.2.3", "0.0.0.0", "::", "239.1.2.3", "ff02::1", "255.255.255.255", "::ffff:0.0.0.0"]
)
def test_addresses_of_none_or_many(host):
    with pytest.raises(ValueError, match="IP address"):
        config.unicast_address(host)


def test_several_switches(toml):
    several = (("a", 1), ("::1", 2), ("c", 3))
    rest = {"rank": 0, "world_size": 1, "job": "a"}
    assert resolve({"switch": "a:1,[::1]:2, c:3", **rest})[0].switch == several
    assert resolve(rest, environment={"JAX_PASSING_SWITCH": "a:1,[::1]:2,c:3"})[0].switch == several
    assert resolve(rest, file=toml('switch = "a:1, [::1]:2, c:3"'))[0].switch == several


def test_axes_that_go_on_over_the_hosts(toml):
    assert resolve()[0].axis_name == ()
    for value in ("d,i", " d , i", ["d", "i"], ("d", "i")):
        assert resolve({"axis_name": value})[0].axis_name == ("d", "i")
    assert resolve({"axis_name": "d"})[0].axis_name == ("d",)
    assert resolve(environment={"JAX_PASSING_AXIS_NAME": "d, i"})[0].axis_name == ("d", "i")
    for text in ('axis_name = "d,i"', 'axis_name = ["d", "i"]'):
        assert resolve(file=toml(text))[0].axis_name == ("d", "i")
    declared_nothing = resolve({"axis_name": ()}, environment={"JAX_PASSING_AXIS_NAME": "d"})[0]
    assert declared_nothing.axis_name == ()


def test_the_launchers_id_is_the_name_unless_one_is_given():
    slurm = {"SLURM_JOB_ID": "123", "SLURM_STEP_ID": "0"}
    settings, sources = resolve({"switch": "s:1", "rank": 0, "world_size": 2}, environment=slurm)
    assert (settings.job, sources["job"]) == ("slurm-123.0", "variable SLURM_JOB_ID")
    assert resolve({"job": "mine"}, environment=slurm)[0].job == "mine"
    assert resolve(environment={**slurm, "JAX_PASSING_JOB": "mine"})[1]["job"] == "variable JAX_PASSING_JOB"


@given(st.text())
def test_addresses_never_raise_anything_else(text):
    try:
        host, port = config.parse_address(text)
    except ValueError:
        return
    assert host
    assert 0 <= port <= 65535


NAMES = st.sampled_from([field.name for field in fields(config.Settings)] + ["switches", "rank_"])
TEXTS = st.sampled_from(["0", "1", "2", "-1", "1e9", "nan", "a:1", "a:1,[::1]:2", "x", "auto", "d,i"]) | st.text(
    max_size=4
)


@given(st.dictionaries(NAMES, TEXTS, max_size=6), st.lists(st.tuples(NAMES, st.none() | TEXTS), max_size=4))
def test_settings_are_right_or_named(tmp_path_factory, variables, entries):
    """From a file, and from variables."""
    file = tmp_path_factory.mktemp("any") / "passing.toml"
    file.write_text("\n".join(f"{name} = {json.dumps(text) if text else '[1'}" for name, text in entries))
    with suppress(ConfigError):
        host, sources = resolve({}, file, {config.PREFIX + name.upper(): text for name, text in variables.items()})
        assert 0 <= host.rank < host.world_size <= config.RANKS_MAX
        assert host.switch is None or host.job
        assert sources.keys() == {field.name for field in fields(config.Settings)}


def test_docs_list_every_setting():
    text = (Path(__file__).parents[2] / "docs" / "operate" / "settings.md").read_text()
    for settings, prefix in ((config.Settings, config.PREFIX), (SwitchSettings, config.SWITCH_PREFIX)):
        for name in (field.name for field in fields(settings)):
            row = rf"^\| `{name}` .*\| `{prefix}{name.upper()}` \|"
            assert re.search(row, text, re.MULTILINE), name
