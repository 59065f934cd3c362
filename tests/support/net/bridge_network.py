"""A bridge in a network namespace, whose address is the switch's, and hosts in namespaces of their own behind it."""

import os
import socket
from collections.abc import Sequence

from support.net import namespaces
from support.net.namespaces import ip

PREFIX = "10.87.0"
SWITCH_MAC = "02:00:00:00:00:fe"


class BridgeNetwork:
    """Context manager. Its namespaces are <name><pid>-switch, -0, -1, …"""

    switch_address = f"{PREFIX}.254"

    def __init__(self, name: str, hosts: int):
        self.hosts = range(hosts)
        self._name = f"{name}{os.getpid()}-"
        self.switch = self._name + "switch"

    def namespace(self, host: int) -> str:
        return f"{self._name}{host}"

    def address(self, host: int | None) -> str:
        return self.switch_address if host is None else f"{PREFIX}.{host + 1}"

    def __enter__(self) -> "BridgeNetwork":
        try:
            for namespace in (self.switch, *map(self.namespace, self.hosts)):
                namespaces.add(namespace)
            for host in self.hosts:
                names = ("name", f"port{host}", "type", "veth", "peer", "name", "eth0", "netns", self.namespace(host))
                ip(self.switch, "link", "add", *names)
                self._up(self.namespace(host), "eth0", self.address(host))
            self.add_bridge()
        except BaseException:
            self.__exit__()
            raise
        return self

    def add_bridge(self) -> None:
        ip(self.switch, "link", "add", "name", "bridge", "address", SWITCH_MAC, "type", "bridge")
        self._up(self.switch, "bridge", self.switch_address)
        ip(self.switch, "route", "add", "224.0.0.0/4", "dev", "bridge")
        for host in self.hosts:
            ip(self.switch, "link", "set", f"port{host}", "master", "bridge", "up")
        namespaces.await_up(self.switch, "bridge", *(f"port{host}" for host in self.hosts))
        for host in self.hosts:
            namespaces.await_up(self.namespace(host), "eth0")

    def delete_bridge(self) -> None:
        ip(self.switch, "link", "delete", "bridge")

    def _up(self, namespace: str, device: str, address: str) -> None:
        ip(namespace, "address", "add", f"{address}/24", "dev", device)
        ip(namespace, "link", "set", device, "up")

    def __exit__(self, *_: object) -> None:
        for namespace in (self.switch, *map(self.namespace, self.hosts)):
            namespaces.remove(namespace)

    def command(self, host: int | None, arguments: Sequence[str]) -> list[str]:
        """The command line that runs `arguments` on a host, or on the switch (None)."""
        return namespaces.within(self.switch if host is None else self.namespace(host), arguments)

    def udp_socket(self, host: int, port: int) -> socket.socket:
        """Opens a host's socket, connected to the switch's `port`; it takes super-packets apart by itself."""
        with namespaces.inside(self.namespace(host)):
            one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.bind((self.address(host), 0))
        one.connect((self.switch_address, port))
        one.setsockopt(socket.SOL_SOCKET, 33, 4 << 20)  # SO_RCVBUFFORCE
        one.settimeout(30)
        return one
