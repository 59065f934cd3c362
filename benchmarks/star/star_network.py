"""A star of network namespaces: hosts whose links to a switch have a rate.

    with StarNetwork(hosts=4, gbit=1.0) as star:
        star.start(0, ["ping", "-c", "1", star.address(1)]).wait()

Every host is a network namespace with a veth pair to a port of a bridge in the switch's namespace. A token bucket on
both ends of the pair gives each direction the rate; TCP between hosts uses cubic. The bridge's own address is that of
the switch: what runs there hears every port at full rate, and a multicast that it sends once leaves through all ports.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from jax_passing.commands.launch.child import die_with

SWITCH = -1  # in place of a host's index

NETWORK = "10.83.0"
BURST = "128k"  # below 100 KB, a bucket can't pass super-packets of 64 KB at the full rate
LIMIT = "16m"
END_S = 5.0  # between SIGTERM and SIGKILL
_NAME = re.compile(r"star(\d+)-")

# In a mount and UTS namespace of its own a process sees the host's name and /etc/hosts: gloo and Open MPI resolve them.
_ENTER = 'mount --bind "$0" /etc/hosts && hostname "$1" && shift && exec "$@"'


class StarError(Exception):
    """The star can't be built here, or a program in it failed."""


def ready() -> str | None:
    """Why no star can be built here; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root: run with sudo"
    missing = [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not found: apt-get install iproute2 util-linux"
    # Root in a container may not.
    probe = subprocess.run(["unshare", "--net", "--mount", "--uts", "true"], capture_output=True, text=True)
    return f"no namespaces may be made here ({probe.stderr.strip()})" if probe.returncode != 0 else None


class StarNetwork:
    """Context manager; everything it made is gone at its end, also after an exception, Ctrl-C, SIGTERM or SIGHUP.

    Leftovers of an earlier star that was killed with SIGKILL are removed first.

    Attributes:
      folder: temporary files, removed at the end.
    """

    def __init__(self, hosts: int, gbit: float, mtu: int = 1500):
        """
        Args:
          hosts: 1 to 100.
          gbit: rate of every link in each direction, in 1e9 bits/s with Ethernet headers; 0: not shaped.
          mtu: of every link, in bytes.
        """
        if not 1 <= hosts <= 100:
            raise StarError(f"{hosts} hosts: a star has 1 to 100.")
        self.hosts = hosts
        self.gbit, self._mtu = gbit, mtu
        self._prefix = f"star{os.getpid()}-"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._handlers: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def address(self, host: int) -> str:
        """IPv4 address of a host, or of the SWITCH."""
        return f"{NETWORK}.{_number(host)}"

    def namespace(self, host: int) -> str:
        return self._prefix + self.name(host)

    def name(self, host: int) -> str:
        """Its host name, which /etc/hosts of every host knows."""
        return "switch" if host == SWITCH else f"host{host}"

    def command(self, host: int, arguments: Sequence[str]) -> list[str]:
        """The command line that runs `arguments` on a host."""
        enter = ["unshare", "--mount", "--uts", "sh", "-c", _ENTER, str(self.folder / "hosts"), self.name(host)]
        return ["ip", "netns", "exec", self.namespace(host), *enter, *arguments]

    def forbid_multicast(self) -> None:
        """No host can join a multicast group any more."""
        for host in range(self.hosts):
            run("ip", "netns", "exec", self.namespace(host), "sysctl", "-qw", "net.ipv4.igmp_max_memberships=0")

    def start(self, host: int, arguments: Sequence[str], **options: object) -> subprocess.Popen[bytes]:
        """Starts a process on a host; `options` are those of Popen. It ends with the star, and with this process."""
        # A process group of its own: Ctrl-C reaches this process alone, which ends the others in order.
        process: subprocess.Popen[bytes] = subprocess.Popen(
            self.command(host, arguments), process_group=0, preexec_fn=die_with(os.getpid()), **options
        )
        self._processes.append(process)
        return process

    def serve(self, port: int) -> str:
        """Starts a switch at the centre and waits until it listens. Returns its address."""
        address = f"{self.address(SWITCH)}:{port}"
        command = [sys.executable, "-P", "-m", "jax_passing", "switch", "--listen", address]
        serving = self.start(SWITCH, command, stdout=subprocess.PIPE)
        assert serving.stdout is not None
        serving.stdout.readline()
        return address

    def shape(self, gbit: float, host: int | None = None) -> None:
        """Gives every link, or one host's, another rate in each direction, above 0."""
        if host is None:
            self.gbit = gbit
        rate = f"tbf rate {round(gbit * 1e9)}bit burst {BURST} limit {LIMIT}"
        for namespace, device in self.devices(host):
            run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *rate.split())

    def plug(self, host: int, *, is_in: bool) -> None:
        """Takes a host's cable out at the switch's end, or puts it in again."""
        run("ip", "-n", self.namespace(SWITCH), "link", "set", f"port{host}", "up" if is_in else "down")

    def devices(self, host: int | None = None) -> list[tuple[str, str]]:
        """Namespace and device of both ends of every link, or of one host's."""
        return [
            end
            for h in (range(self.hosts) if host is None else [host])
            for end in ((self.namespace(h), "eth0"), (self.namespace(SWITCH), f"port{h}"))
        ]

    def __enter__(self) -> Self:
        problem = ready()
        if problem is not None:
            raise StarError(f"Can't build a star: {problem}.")
        _remove_stale()
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._handlers[number] = signal.signal(number, _exit)
        try:
            self.folder = Path(tempfile.mkdtemp(prefix=self._prefix))
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _build(self) -> None:
        everybody = [SWITCH, *range(self.hosts)]
        lines = ["127.0.0.1 localhost", *(f"{self.address(host)} {self.name(host)}" for host in everybody)]
        (self.folder / "hosts").write_text("\n".join(lines) + "\n")
        for host in everybody:
            run("ip", "netns", "add", self.namespace(host))
        switch = self.namespace(SWITCH)
        links = [f"link add name bridge address {mac(SWITCH)} type bridge"]
        for host in range(self.hosts):
            links.append(
                f"link add eth0 netns {self.namespace(host)} address {mac(host)} mtu {self._mtu} type veth peer name "
                f"port{host} mtu {self._mtu}"
            )
            links.append(f"link set port{host} master bridge up")
        links.append(f"link set bridge mtu {self._mtu}")
        _batch("ip", switch, [*links, *self._addresses(SWITCH, "bridge", range(self.hosts))])
        for host in range(self.hosts):
            _batch("ip", self.namespace(host), self._addresses(host, "eth0", [h for h in everybody if h != host]))
        if self.gbit:
            self.shape(self.gbit)

    def _addresses(self, host: int, device: str, others: Sequence[int]) -> list[str]:
        return [
            "link set lo up",
            f"address add {self.address(host)}/24 dev {device} noprefixroute",
            f"link set {device} up",
            f"route add {NETWORK}.0/24 dev {device} src {self.address(host)} congctl cubic",
            f"route add 224.0.0.0/4 dev {device}",  # as a default route would, on a real host
            # Static: no ARP that waits behind the data in a full bucket.
            *(f"neighbour add {self.address(o)} lladdr {mac(o)} dev {device} nud permanent" for o in others),
        ]

    def _remove(self) -> None:
        masked = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
        signal.pthread_sigmask(signal.SIG_BLOCK, masked)  # a second Ctrl-C must not stop halfway
        try:
            for process in self._processes:
                if process.poll() is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGTERM)
            until = time.monotonic() + END_S
            for process in self._processes:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, until - time.monotonic()))
            _remove_namespaces([self.namespace(host) for host in [SWITCH, *range(self.hosts)]])
            for process in self._processes:
                process.wait()  # killed with their namespaces
            if hasattr(self, "folder"):
                shutil.rmtree(self.folder, ignore_errors=True)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, masked)


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _number(host: int) -> int:
    return 254 if host == SWITCH else host + 1


def mac(host: int) -> str:
    return f"02:00:00:00:00:{_number(host):02x}"


def run(*command: str, given: str | None = None) -> str:
    """Runs a command to its end and returns its output. Raises StarError with what it says if it fails."""
    done = subprocess.run(command, input=given, text=True, capture_output=True, timeout=60)
    if done.returncode != 0:
        raise StarError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _batch(tool: str, namespace: str, lines: Sequence[str]) -> None:
    run(tool, "-n", namespace, "-batch", "-", given="\n".join(lines) + "\n")


def _remove_namespaces(names: Sequence[str]) -> None:
    """Ends what runs in them, then removes those that exist."""
    existing = [name for name in names if (Path("/run/netns") / name).exists()]
    for name in existing:
        for pid in run("ip", "netns", "pids", name).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    for name in existing:
        run("ip", "netns", "delete", name)


def _remove_stale() -> None:
    """Stars whose process was killed with SIGKILL."""
    folders = list(Path(tempfile.gettempdir()).glob("star*-*"))
    namespaces = list(Path("/run/netns").glob("star*-*"))

    def is_stale(path: Path) -> bool:
        match = _NAME.match(path.name)
        return match is not None and not Path(f"/proc/{match[1]}").exists()

    _remove_namespaces([path.name for path in namespaces if is_stale(path)])
    for path in filter(is_stale, folders):
        shutil.rmtree(path, ignore_errors=True)
