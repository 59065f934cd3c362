"""A real Slurm with nodes in network namespaces of this machine: each has an address, a name and its own slurmd."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from support.jobs.cluster import Process
from support.net import namespaces
from support.net.bridge_network import BridgeNetwork

TOOLS = ("slurmctld", "slurmd", "sbatch", "munged", "nsenter", "unshare")
START_S = 60.0
CPUS = 16  # of each node, whatever this machine has

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost=controller({controller})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmdPidFile={folder}/%n.pid
SlurmctldPidFile={folder}/controller.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
"""


def missing(*tools: str) -> str | None:
    """Returns why there can be none here; None if there can."""
    return namespaces.missing(*TOOLS, *tools)


class Slurm(BridgeNetwork):
    """Context manager. Its nodes are called node1, node2 and so on; their user is root, and their files lie in
    `folder`."""

    def __init__(self, folder: Path, nodes: int) -> None:
        super().__init__("slurm", nodes)
        self.folder, self._daemons = folder, []
        self._environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def __enter__(self) -> "Slurm":
        super().__enter__()
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        folder = self.folder
        names = {host: f"node{host + 1}" for host in self.hosts}
        own = [f"{self.address(host)} {name}" for host, name in names.items()]
        (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", f"{self.switch_address} controller", *own, ""]))
        nodes = [
            f"NodeName={name} NodeAddr={self.address(host)} CPUs={CPUS} RealMemory=1000" for host, name in names.items()
        ]
        partition = f"PartitionName=all Nodes={','.join(names.values())} Default=YES State=UP"
        text = _CONFIGURATION.format(folder=folder, controller=self.switch_address)
        (folder / "slurm.conf").write_text("\n".join([text, *nodes, partition, ""]))
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o400)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={folder}/munge.{end}" for option, end in files.items()]
        self._daemon(["munged", "--foreground", "--force", *options])
        until = time.monotonic() + START_S
        while not (folder / "munge.socket").exists():
            assert time.monotonic() < until, self.logs()
            time.sleep(0.05)
        self._daemon(self.command(None, ["slurmctld", "-D", "-c"]))
        for host, name in names.items():
            self._daemon(self.command(host, ["slurmd", "-D", "-N", name]))
        while self.output("sinfo", "--noheader", "--states=idle", "--format=%D").strip() != str(len(names)):
            assert time.monotonic() < until, self.logs()
            time.sleep(0.2)

    def _daemon(self, command: Sequence[str]) -> None:
        self._daemons.append(Process(list(command), self._environment))

    def logs(self) -> str:
        return "\n".join(daemon.text[-4000:] for daemon in self._daemons)

    def __exit__(self, *_: object) -> None:
        self._cancel()
        for daemon in reversed(self._daemons):
            if daemon.popen.poll() is None:
                daemon.signal(signal.SIGTERM)
                try:
                    daemon.popen.wait(10)
                except subprocess.TimeoutExpired:
                    daemon.stop()
        super().__exit__()

    def _cancel(self) -> None:
        """Ends what jobs have started, which would outlive the daemons."""
        subprocess.run(self.command(None, ["scancel", "--user=root"]), env=self._environment, timeout=30, check=False)
        until = time.monotonic() + 20
        while time.monotonic() < until and self._queued():
            time.sleep(0.2)

    def _queued(self) -> bool:
        command = self.command(None, ["squeue", "--noheader"])
        return bool(subprocess.run(command, env=self._environment, capture_output=True, timeout=30).stdout.strip())

    def command(self, host: int | None, arguments: Sequence[str]) -> list[str]:
        """The command line that runs `arguments` on a node, or on the controller (None), whose names all know.

        "ip netns exec" would hide /sys/fs/cgroup, which slurmd looks at.
        """
        name = "controller" if host is None else f"node{host + 1}"
        namespace = self.switch if host is None else self.namespace(host)
        named = f'mount --bind {self.folder}/hosts /etc/hosts && hostname {name} && exec "$@"'
        there = ["nsenter", f"--net=/run/netns/{namespace}", "unshare", "--mount", "--uts"]
        return [*there, "sh", "-c", named, "sh", *arguments]

    def output(self, *command: str) -> str:
        """Runs a command of Slurm's on the controller; it must succeed."""
        done = subprocess.run(
            self.command(None, command),
            env=self._environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}\n{self.logs()}"
        return done.stdout

    def submit(self, script: str, *options: str, **environment: str) -> int:
        """Submits a batch script, whose working folder is ours; returns the job's number."""
        (self.folder / "job.sh").write_text(script)
        given = [f"{name}={value}" for name, value in environment.items()]
        text = self.output("env", *given, "sbatch", "--parsable", "--output=%j.log", *options, "job.sh")
        return int(text.strip())

    def log(self, job: int) -> str:
        """Returns the output of the job so far."""
        file = self.folder / f"{job}.log"
        return file.read_text() if file.exists() else ""

    def state(self, job: int) -> str:
        text = self.output("scontrol", "--oneliner", "show", "job", str(job))
        return next(word.partition("=")[2] for word in text.split() if word.startswith("JobState="))

    def await_state(self, job: int, *states: str, timeout_s: float = 180.0) -> str:
        until = time.monotonic() + timeout_s
        while (state := self.state(job)) not in states:
            assert time.monotonic() < until, f"{state} after {timeout_s} s:\n{self.log(job)}\n{self.logs()}"
            time.sleep(0.2)
        return state


def with_environment(folder: Path, prefix: str) -> None:
    """Puts the virtual environment of the tests where the pages' scripts expect one."""
    (folder / ".venv").symlink_to(prefix)
