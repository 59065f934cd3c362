"""bmv2 with the program of p4/ in a namespace, and the control plane's side of it."""

import subprocess
import time
from pathlib import Path

from jax_passing.protocol.packet import PORT
from jax_passing.switch.data_planes.device import Device, Neighbour
from jax_passing.switch.data_planes.p4 import P4DataPlane
from jax_passing.switch.data_planes.pipeline import DeviceError
from jax_passing.switch.data_planes.pipelines.bmv2 import Bmv2
from support.net import namespaces
from support.p4 import network

PORTS = 4
THRIFT_PORT = 9090  # in a namespace of its own


class Switch:
    """simple_switch at ports 0 to 3 of a network.

    Attributes:
      ports: their far ends.
      data_plane: the control plane's view of it.
      lanes: of every packet.
    """

    ip, mac, udp_port = "10.0.0.100", "02:00:00:00:01:00", PORT

    def __init__(self, bmv2: str, program: Path, log: Path):
        self._network = network.Network(PORTS)
        self.ports = self._network.ports
        interfaces = [word for port in range(PORTS) for word in ("-i", f"{port}@s{port}")]
        with namespaces.inside(self._network.namespace), log.open("w") as output:
            command = [bmv2, *interfaces, "--thrift-port", str(THRIFT_PORT), str(program)]
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            try:
                self.data_plane = self._connect()
            except BaseException:
                self.close()
                raise
        self.lanes = self.data_plane.lanes_per_chunk

    def connect(self) -> P4DataPlane:
        """A further control plane: it takes the device over."""
        with namespaces.inside(self._network.namespace):
            return self._attach()

    def _attach(self) -> P4DataPlane:
        hosts = tuple(Neighbour(ip, mac, host % PORTS) for host, (mac, ip) in enumerate(network.HOSTS))
        device = Device(f"127.0.0.1:{THRIFT_PORT}", self.ip, self.mac, tuple(range(PORTS)), hosts)
        return P4DataPlane(device, Bmv2(device.runtime_address))

    def _connect(self) -> P4DataPlane:
        deadline = time.monotonic() + 60
        while True:
            try:
                return self._attach()
            except DeviceError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def verdicts(self) -> dict[str, int]:
        """Returns the counts of verdicts that aren't 0."""
        return {name: count for name, count in self.data_plane.stats().items() if count}

    def close(self) -> None:
        self._process.kill()
        self._process.wait(60)
        self._network.close()
