"""The files in docs/operate/clusters.md, and the service in switches.md, name variables, flags, secrets and ports that
there are."""

import configparser
import re
import shlex
import shutil
import subprocess

import pytest
import typer
import yaml

from jax_passing import config
from jax_passing.commands import cli
from jax_passing.protocol.packet import PORT
from jax_passing.switch.jobs.quotas import CONNECTIONS_MAX
from jax_passing.switch.server import settings as switch_settings
from jax_passing.switch.server.descriptors import BESIDE, PER_CONNECTION_BELOW_A_PARENT
from support.pages import blocks, page

PAGE = page("clusters.md")
TEXT = PAGE.read_text()
SHELL = [block.text for block in blocks(PAGE) if block.language == "bash"]
MANIFEST, TPU_HOSTS = (yaml.safe_load(block.text) for block in blocks(PAGE) if block.language == "yaml")
COMMANDS = typer.main.get_command(cli.app).commands


def flags(subcommand):
    """Returns the flags of a subcommand of `jax-passing`, and whether each takes a value."""
    return {
        name: not parameter.is_flag
        for parameter in COMMANDS[subcommand].params
        for name in [*parameter.opts, *parameter.secondary_opts]
    }


def started(words):
    """Checks the words of a command, [..., "jax-passing", "switch", flags], and returns the flags' values."""
    subcommand, *rest = words[words.index("jax-passing") + 1 :]
    known, values = flags(subcommand), {}
    while rest and rest[0] not in ("&", ">", "|"):
        name, equals, value = rest.pop(0).partition("=")
        assert name in known, (subcommand, name)
        values[name] = (value if equals else rest.pop(0)) if known[name] else None
    return values


def job(manifest, name):
    (found,) = (one for one in manifest["spec"]["replicatedJobs"] if one["name"] == name)
    return found


ON_TPUS = {**MANIFEST, "spec": {**MANIFEST["spec"], "replicatedJobs": [job(MANIFEST, "switch"), *TPU_HOSTS]}}
both = pytest.mark.parametrize("manifest", [MANIFEST, ON_TPUS], ids=["kubernetes", "tpu"])


def pod(manifest, name):
    return job(manifest, name)["template"]["spec"]["template"]["spec"]


def container(manifest, name):
    (only,) = pod(manifest, name)["containers"]
    return only


def variables(manifest):
    return {one["name"]: one.get("value") for one in container(manifest, "hosts")["env"]}


def test_there_is_what_this_looks_at():
    assert sum("jax-passing" in text for text in SHELL) >= 3
    assert {"switch", "key", "doctor"} <= COMMANDS.keys()


def test_variables_are_settings():
    known = {config.PREFIX + name.upper() for name in [*config.Settings.__dataclass_fields__, "config"]}
    used = set(re.findall(r"JAX_PASSING_\w+", TEXT))
    assert {"JAX_PASSING_SWITCH", "JAX_PASSING_KEY_FILE", "JAX_PASSING_RANK"} <= used
    assert used <= known


def test_flags_are_those_of_the_commands():
    lines = [line for text in SHELL for line in text.splitlines() if "jax-passing" in line]
    for line in lines:
        started(shlex.split(line))
    for flag in re.findall(r"`jax-passing (\w+)([^`]*)`", TEXT):
        started(shlex.split(f"jax-passing {flag[0]}{flag[1]}"))
    for flag in re.findall(r"`(--(?:lanes|key|listen)[\w-]*)", TEXT):
        assert flag in flags("switch")


def test_a_switch_starts_with_its_flags():
    values = started(container(MANIFEST, "switch")["command"])
    given = {name.removeprefix("--").replace("-", "_"): value for name, value in values.items()}
    given = {name: value for name, value in given.items() if name not in ("no_multicast",)}
    assert switch_settings.resolve(given, None, environment={}).listen == ("0.0.0.0", 7171)


def test_the_service_is_a_switch():
    (unit,) = (block.text for block in blocks(page("switches.md")) if block.language == "ini")
    service = configparser.ConfigParser(strict=False)  # systemd takes a key twice
    service.optionxform = str  # systemd's keys have capitals
    service.read_string(unit)
    words = [
        word.rpartition("/")[2] if word.endswith("jax-passing") else word
        for word in shlex.split(service["Service"]["ExecStart"])
    ]
    values = {name.removeprefix("--").replace("-", "_"): value for name, value in started(words).items()}
    assert switch_settings.resolve(values, None, environment={}).listen[1] == PORT
    most_files = CONNECTIONS_MAX * PER_CONNECTION_BELOW_A_PARENT + BESIDE
    assert int(service["Service"]["LimitNOFILE"]) == most_files


def test_systemd_never_gives_the_service_up_and_finds_it_confined(tmp_path):
    """An address that comes late would use up five starts within 2 s."""
    (unit,) = (block.text for block in blocks(page("switches.md")) if block.language == "ini")
    lines = unit.splitlines()
    assert {"StartLimitIntervalSec=0", "Restart=always", "RestartSec=5"} <= set(lines)
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze isn't installed")
    file = tmp_path / "jax-passing-switch.service"
    file.write_text(unit.replace("/opt/passing/bin/jax-passing", "/bin/true"))
    verified = subprocess.run(["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, timeout=60)
    assert (verified.returncode, verified.stderr) == (0, b"")  # it knows all keys
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=17", str(file)]
    judged = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert judged.returncode == 0, judged.stdout[-200:] + judged.stderr


@both
def test_hosts_find_the_switch_where_it_listens(manifest):
    """JobSet names a pod NAME-JOB-INDEX-INDEX, in the domain `subdomain`."""
    spec, name = manifest["spec"], manifest["metadata"]["name"]
    assert spec["network"]["enableDNSHostnames"] is True
    host, port = config.parse_peer(variables(manifest)["JAX_PASSING_SWITCH"])
    assert host == f"{name}-switch-0-0.{spec['network']['subdomain']}"
    of_switch = container(manifest, "switch")
    listens = int(started(of_switch["command"])["--listen"].rpartition(":")[2])
    assert port == listens
    assert {(one["containerPort"], one["protocol"]) for one in of_switch["ports"]} == {(port, "TCP"), (port, "UDP")}
    probes = [probe for key, probe in of_switch.items() if key.endswith("Probe")]
    assert probes
    assert {probe["tcpSocket"]["port"] for probe in probes} == {port}


@both
def test_every_pod_has_a_rank_of_its_own(manifest):
    hosts = job(manifest, "hosts")
    spec = hosts["template"]["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"]
    assert int(variables(manifest)["JAX_PASSING_WORLD_SIZE"]) == hosts["replicas"] * spec["completions"]
    (rank,) = (one for one in container(manifest, "hosts")["env"] if one["name"] == "JAX_PASSING_RANK")
    field = rank["valueFrom"]["fieldRef"]["fieldPath"]
    several_pods, several_jobs = spec["completions"] > 1, hosts["replicas"] > 1
    assert several_pods != several_jobs
    assert ("job-completion-index" in field) == several_pods
    assert ("jobset.sigs.k8s.io/job-index" in field) == several_jobs


@both
def test_the_settings_of_a_host_are_whole(manifest):
    environment = {**variables(manifest), "JAX_PASSING_RANK": "1"}
    settings, _ = config.resolve({}, environment=environment)
    assert (settings.rank, settings.world_size, settings.job) == (1, 2, "train")
    assert "PYTHONHASHSEED" in environment


def test_the_end_is_that_of_the_hosts():
    names = {one["name"] for one in MANIFEST["spec"]["replicatedJobs"]}
    assert names == {"switch", "hosts"}
    assert MANIFEST["spec"]["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["hosts"]}


@both
def test_secrets_are_those_that_are_made(manifest):
    """By `kubectl create secret generic NAME --from-file=FILE`."""
    made = dict(re.findall(r"kubectl create secret generic (\S+) --from-file=(\S+)", "\n".join(SHELL)))
    used = {
        "switch": started(container(manifest, "switch")["command"])["--key-file"],
        "hosts": variables(manifest)["JAX_PASSING_KEY_FILE"],
    }
    for name, path in used.items():
        (volume,) = pod(manifest, name)["volumes"]
        (mount,) = container(manifest, name)["volumeMounts"]
        assert volume["name"] == mount["name"]
        assert volume["secret"]["defaultMode"] == 0o400
        assert path == f"{mount['mountPath']}/{made[volume['secret']['secretName']]}"
    (line,) = (line for text in SHELL for line in text.splitlines() if "key --switch-key switch.key" in line)
    assert started(shlex.split(line))["--job"] == variables(manifest)["JAX_PASSING_JOB"]


def test_packets_fit_the_mtu_that_is_said():
    from jax_passing.doctor.route import Route

    mtu = 1400
    assert f"MTU of {mtu:,}" in TEXT
    lanes = int(started(container(MANIFEST, "switch")["command"])["--lanes-per-chunk"])
    assert lanes == Route("", "eth0", "10.0.0.1", mtu, None).lanes_that_fit


def test_a_tpu_host_asks_for_all_chips_of_its_slice():
    host = container(ON_TPUS, "hosts")
    topology = pod(ON_TPUS, "hosts")["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
    chips = 1
    for side in topology.split("x"):
        chips *= int(side)
    assert {host["resources"][kind]["google.com/tpu"] for kind in ("requests", "limits")} == {chips}
