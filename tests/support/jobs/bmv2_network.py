"""Hosts on the ports of simple_switch, each in a network namespace of its own, as is the control plane.

The control plane is one more host on the device's last port, and reaches the device's Thrift server over a management
link: so the hosts' TCP connections are ordinary traffic through the device.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from jax_passing.protocol.packet import PORT
from jax_passing.switch.server.settings import BMV2_SLOTS_PER_JOB
from support.jobs.cluster import PASSING, PROGRAMS, Process, host_settings
from support.net import namespaces
from support.net.namespaces import ip
from support.p4 import tools

NETWORK = "10.86.0"
DEVICE, CONTROL = f"{NETWORK}.254", f"{NETWORK}.253"
MANAGEMENT = "10.87.0"
# Its runtime server: of simple_switch, or of simple_switch_grpc.
THRIFT, GRPC = 9090, 9559
BAD_LINK = Path(__file__).parents[1] / "net" / "bad_link.py"


class Bmv2Network:
    """`faults`: (loss, duplicate, delay) of each host's link, probabilities each way. `data_plane`: bmv2, p4runtime."""

    def __init__(
        self,
        folder: Path,
        program: Path,
        hosts: int,
        faults: tuple[float, float, float] | None = None,
        data_plane: str = "bmv2",
    ) -> None:
        self.folder, self.program, self.hosts, self.faults = folder, program, hosts, faults
        self.data_plane = data_plane
        self.processes: list[Process] = []
        self._names = ["device", "control", *(["wire"] if faults else []), *map(str, range(hosts))]

    def address(self, host: int) -> str:
        return f"{NETWORK}.{host + 1}"

    def namespace(self, name: str) -> str:
        return f"bmv2-{os.getpid()}-{name}"

    def _run(self, name: str, *command: str) -> str:
        return namespaces.run(*namespaces.within(self.namespace(name), command))

    def start(self, name: str, command: Sequence[str], env: dict[str, str] | None = None) -> Process:
        process = Process(namespaces.within(self.namespace(name), command), env)
        self.processes.append(process)
        return process

    def build(self) -> None:
        for name in self._names:
            namespaces.add(self.namespace(name))
        for host in range(self.hosts):
            if self.faults:
                self._link(str(host), "eth0", "wire", f"near{host}")
                self._link("wire", f"far{host}", "device", f"port{host}")
            else:
                self._link(str(host), "eth0", "device", f"port{host}")
            self._address(str(host), "eth0", self.address(host))
        self._link("control", "eth0", "device", f"port{self.hosts}")
        self._address("control", "eth0", CONTROL)
        self._link("control", "management", "device", "management")
        self._address("control", "management", f"{MANAGEMENT}.2")
        self._address("device", "management", f"{MANAGEMENT}.1")
        if self.faults:
            links = [f"near{host},far{host}" for host in range(self.hosts)]
            wire = self.start("wire", [sys.executable, str(BAD_LINK), "1", *map(str, self.faults), *links])
            wire.wait_for("ready", 10)

    def _link(self, one: str, device: str, other: str, peer: str) -> None:
        ends = (one, device), (other, peer)
        far = ["peer", "name", peer, "netns", self.namespace(other)]
        ip(self.namespace(one), "link", "add", device, "type", "veth", *far)
        for name, end in ends:
            namespaces.turn_offloads_off(self.namespace(name), end)
            ip(self.namespace(name), "link", "set", end, "up")
        for name, end in ends:
            namespaces.await_up(self.namespace(name), end)

    def _address(self, name: str, device: str, address: str) -> None:
        ip(self.namespace(name), "address", "add", f"{address}/24", "dev", device)

    def start_device(self) -> Process:
        ports = [word for port in range(self.hosts + 1) for word in ("-i", f"{port}@port{port}")]
        if self.data_plane == "bmv2":
            runtime = THRIFT
            simple_switch = tools.find("simple_switch", "PASSING_BMV2")
            flags = [*self._notifications(simple_switch), str(self.program)]
        else:  # starts without a program: the control plane brings it
            runtime = GRPC
            simple_switch = tools.find("simple_switch_grpc", "PASSING_BMV2_GRPC")
            flags = ["--no-p4", *self._notifications(simple_switch)]
            flags += ["--", "--grpc-server-addr", f"{MANAGEMENT}.1:{GRPC}"]
        device = self.start("device", [simple_switch, *ports, "--thrift-port", str(THRIFT), *flags])
        until = time.monotonic() + 20
        while f":{runtime} " not in self._run("device", "ss", "-ltn"):
            assert time.monotonic() < until, f"no runtime server:\n{device.text}"
            time.sleep(0.05)
        return device

    def _notifications(self, simple_switch: str) -> list[str]:
        """Builds with nanomsg have one socket for all switches of the machine, if it isn't named."""
        options = subprocess.run([simple_switch, "--help"], capture_output=True, text=True).stdout
        named = "--notifications-addr" in options
        return ["--notifications-addr", f"ipc://{self.folder}/notifications.ipc"] if named else []

    def _device_file(self) -> Path:
        runtime = THRIFT if self.data_plane == "bmv2" else GRPC
        lines = [f'runtime = "{MANAGEMENT}.1:{runtime}"', f'address = "{DEVICE}"', 'mac = "02:00:00:00:00:fe"']
        lines.append(f"ports = {json.dumps(list(range(self.hosts + 1)))}")
        if self.data_plane == "p4runtime":
            p4info = self.program.with_suffix(".p4info.bin")
            lines += [f'program = "{self.program}"', f'p4info = "{p4info}"', "lanes = 64"]
            for host in range(self.hosts):  # the server doesn't read the registers where the program notes them
                mac = self._run(str(host), "cat", "/sys/class/net/eth0/address").strip()
                lines += ["[[neighbours]]", f'address = "{self.address(host)}"', f'mac = "{mac}"', f"port = {host}"]
        file = self.folder / "device.toml"
        file.write_text("\n".join(lines) + "\n")
        return file

    def start_switch(self, *flags: str) -> Process:
        command = [*PASSING, "switch", "--verbose", "--listen", f"{CONTROL}:{PORT}"]
        command += ["--data-plane", self.data_plane, "--device", str(self._device_file())]
        if self.data_plane == "p4runtime":
            command += ["--slots-per-job", str(BMV2_SLOTS_PER_JOB)]  # it can't know that this is bmv2
        switch = self.start("control", [*command, *flags])
        switch.wait_for("listening on")
        return switch

    def start_hosts(
        self,
        program: Path | str,
        *arguments: str,
        world_size: int | None = None,
        switches: Sequence[str] = (),
        **env: str,
    ) -> list[Process]:
        """A JAX process on each host, or on the first `world_size` ones; `switches`: of each, if not the device."""
        path = PROGRAMS / program  # stays as it is if absolute
        return self.start_command([sys.executable, str(path), *arguments], path.name, world_size, switches, **env)

    def start_command(
        self,
        command: Sequence[str],
        job: str,
        world_size: int | None = None,
        switches: Sequence[str] = (),
        **env: str,
    ) -> list[Process]:
        size = world_size or self.hosts
        places = switches or [f"{CONTROL}:{PORT}"] * size
        settings = [host_settings(places[rank], job, rank, size) for rank in range(size)]
        return [self.start(str(rank), command, settings[rank] | env) for rank in range(size)]

    def remove(self) -> None:
        for process in self.processes:
            process.stop()
        for name in self._names:
            namespaces.remove(self.namespace(name))
