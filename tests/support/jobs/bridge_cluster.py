"""Switches and hosts as processes, each on a machine of a bridge_network; None stands for that of the bridge."""

import sys
from collections.abc import Sequence

from jax_passing.protocol.packet import PORT
from support.jobs.cluster import PASSING, PROGRAMS, Process, host_settings
from support.net.bridge_network import BridgeNetwork


class BridgeCluster(BridgeNetwork):
    """Context manager."""

    def __init__(self, name: str, hosts: int) -> None:
        super().__init__(name, hosts)
        self.processes: list[Process] = []

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.stop()
        super().__exit__()

    def place(self, machine: int | None = None) -> str:
        """Returns the address of the switch on it."""
        return f"{self.address(machine)}:{PORT}"

    def start(self, machine: int | None, command: Sequence[str], env: dict[str, str] | None = None) -> Process:
        process = Process(self.command(machine, command), env)
        self.processes.append(process)
        return process

    def start_switch(self, *flags: str, machine: int | None = None) -> Process:
        command = [*PASSING, "switch", "--verbose", "--listen", self.place(machine), *flags]
        switch = self.start(machine, command)
        switch.wait_for("listening on")
        return switch

    def start_hosts(
        self, program: str, *arguments: str, places: Sequence[str] = (), job: str = "job", devices: int = 1
    ) -> list[Process]:
        """`places`: of each rank its switch; empty: one on each machine, all at the bridge's switch."""
        places = places or [self.place()] * len(self.hosts)
        command = [sys.executable, str(PROGRAMS / program), *arguments]
        settings = [host_settings(place, job, rank, len(places), devices) for rank, place in enumerate(places)]
        return [self.start(rank, command, own) for rank, own in enumerate(settings)]
