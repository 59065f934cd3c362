"""A bridge in a network namespace, whose address is the switch's, and hosts in namespaces of their own behind it."""

import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from p4_network import inside

PREFIX = "10.87.0"
SWITCH_MAC = "02:00:00:00:00:fe"


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


class BridgeNetwork:
    """Context manager. Its namespaces are <name><pid>-switch, -0, -1, …"""

    switch_address = f"{PREFIX}.254"

    def __init__(self, name: str, hosts: int):
        self.hosts = range(hosts)
        self._name = f"{name}{os.getpid()}-"
        self.switch = self._name + "switch"

    def namespace(self, host: int) -> str:
        return f"{self._name}{host}"

    def address(self, host: int) -> str:
        return f"{PREFIX}.{host + 1}"

    def __enter__(self) -> "BridgeNetwork":
        try:
            for namespace in (self.switch, *map(self.namespace, self.hosts)):
                _ip("netns", "add", namespace)
                subprocess.run(
                    ["ip", "netns", "exec", namespace, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1"],
                    check=True,
                    timeout=30,
                )
                _ip("-n", namespace, "link", "set", "lo", "up")
            for host in self.hosts:
                names = ("name", f"port{host}", "type", "veth", "peer", "name", "eth0", "netns", self.namespace(host))
                _ip("-n", self.switch, "link", "add", *names)
                self._up(self.namespace(host), "eth0", self.address(host))
            self.add_bridge()
        except BaseException:
            self.__exit__()
            raise
        return self

    def add_bridge(self) -> None:
        _ip("-n", self.switch, "link", "add", "name", "bridge", "address", SWITCH_MAC, "type", "bridge")
        self._up(self.switch, "bridge", self.switch_address)
        for host in self.hosts:
            _ip("-n", self.switch, "link", "set", f"port{host}", "master", "bridge", "up")

    def delete_bridge(self) -> None:
        _ip("-n", self.switch, "link", "delete", "bridge")

    def _up(self, namespace: str, device: str, address: str) -> None:
        _ip("-n", namespace, "address", "add", f"{address}/24", "dev", device)
        _ip("-n", namespace, "link", "set", device, "up")
        _ip("-n", namespace, "route", "add", "224.0.0.0/4", "dev", device)

    def __exit__(self, *_: object) -> None:
        for namespace in (self.switch, *map(self.namespace, self.hosts)):
            if Path("/run/netns", namespace).exists():
                _ip("netns", "delete", namespace)

    def command(self, host: int | None, arguments: Sequence[str]) -> list[str]:
        """The command line that runs `arguments` on a host, or on the switch (None)."""
        return ["ip", "netns", "exec", self.switch if host is None else self.namespace(host), *arguments]

    def udp_socket(self, host: int, port: int) -> socket.socket:
        """Of a host, connected to the switch's `port`; it takes super-packets apart by itself."""
        with inside(self.namespace(host)):
            one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.bind((self.address(host), 0))
        one.connect((self.switch_address, port))
        one.setsockopt(socket.SOL_SOCKET, 33, 4 << 20)  # SO_RCVBUFFORCE
        one.settimeout(5)
        return one
