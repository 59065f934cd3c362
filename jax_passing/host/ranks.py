"""The ranks of this process at the switch: one for the host, and with strategy "flat" one more for each device."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from jax_passing import _native, config, job_names
from jax_passing.errors import ConfigError, Failure
from jax_passing.host.membership import Membership


def _devices_have_ranks(settings: config.Settings, devices: int) -> bool:
    """Whether each of this host's `devices` gets a rank of its own, as strategy "flat" needs it.

    Raises:
      ConfigError: there are more devices than a job may have ranks.
    """
    if settings.strategy != "flat" or devices == 1:
        return False  # a host with one device is that device
    if settings.world_size * devices > config.RANKS_MAX:
        raise ConfigError(
            f"strategy='flat' needs a rank for each device: {settings.world_size} hosts x {devices} devices are more "
            f"than the {config.RANKS_MAX} of a job. Use strategy='passing', which takes one a host."
        )
    return True


class Links(NamedTuple):
    """Of a job, for those who predict how long its sums take. The same on all hosts.

    Attributes:
      host_gbit: the slowest host's rate; None if no host knows its own.
      switch_gbit: the slowest switch's; None if the switches have a port for each host.
      switches: how many share the job's sums.
    """

    host_gbit: float | None
    switch_gbit: float | None
    switches: int


class Ranks:
    """Made by joining, which waits for all hosts. Raises what Membership raises.

    The devices' ranks belong to a second job; device i of host r has rank r * L + i there. A failure of either job is
    one of both.

    Attributes:
      host: this host's membership in the job.
      devices: its devices' in the second job, in the order of the devices; none unless the strategy is "flat".
    """

    def __init__(self, settings: config.Settings, device_count: int, key: bytes | None):
        self._settings = settings
        devices_have_ranks = _devices_have_ranks(settings, device_count)
        self.host = Membership(settings, device_count, key)
        self.devices: list[Membership] = []
        try:
            if devices_have_ranks:
                self.devices = _join_devices(settings, device_count, key)
        except BaseException:
            self.host.close()
            raise
        self._all = [self.host, *self.devices]

    @property
    def links(self) -> Links:
        return Links(self.host.link_gbit, self.host.switch_link_gbit, len(self._settings.switch or ()))

    def attach(self, deadline_s: float, first_device_id: int) -> None:
        """Lends the transports to this process's handlers."""
        devices = [device.transport for device in self.devices]
        _native.attach(
            self.host.transport, deadline_s, devices, rank=self._settings.rank, first_device_id=first_device_id
        )

    def start(self) -> None:
        for device in self.devices:
            device.on_failed = self._device_failed
        self.host.on_failed = self._host_failed
        for member in self._all:
            member.start()

    def _host_failed(self, failure: Failure) -> None:
        for device in self.devices:
            device.fail(failure, tell=False)  # the other hosts hear of it in their job

    def _device_failed(self, failure: Failure) -> None:
        self.host.fail(self._of_hosts(failure))

    def _of_hosts(self, failure: Failure) -> Failure:
        """In the second job ranks count devices."""
        hosts = {rank // len(self.devices) for rank in failure.ranks}
        return dataclasses.replace(failure, ranks=tuple(sorted(hosts)))

    def fail(self, failure: Failure) -> None:
        """Fails all sums; the first failure wins. Tells the switch, which tells the other hosts."""
        self.host.fail(failure)

    @property
    def failure(self) -> Failure | None:
        """Why sums fail from now on, if so."""
        if (failure := self.host.failure) is not None:
            return failure
        return next((self._of_hosts(failure) for device in self.devices if (failure := device.failure)), None)

    def drain(self, until: float) -> bool:
        """False if sums are still pending at `until` (monotonic), or have failed."""
        return all(member.drain(until) for member in self._all)

    def leave(self, until: float) -> None:
        """Tells the switch, and waits for the other hosts to leave."""
        for member in self._all:
            member.leave()
        for member in self._all:
            member.await_others(until)

    def close(self) -> None:
        """Fails what is pending. Bounded in time."""
        for member in self._all:
            member.close()

    def forget_in_child(self) -> None:
        """After a fork."""
        for member in self._all:
            member.forget_in_child()

    def stats(self) -> dict[str, int]:
        """Counters of all ranks. Sums and their bytes count once each, though every device carries its part."""
        total = self.host.transport.stats()
        for index, device in enumerate(self.devices):
            for name, value in device.transport.stats().items():
                if name in ("sums_started", "sums_completed", "tensor_bytes"):
                    total[name] += value if index == 0 else 0
                elif name.endswith("_us"):
                    total[name] = max(total[name], value)
                else:
                    total[name] += value
        return total


def _join_devices(settings: config.Settings, device_count: int, key: bytes | None) -> list[Membership]:
    assert settings.job is not None  # there is a switch
    joins = [
        dataclasses.replace(
            settings,
            job=job_names.of_devices(settings.job),
            rank=settings.rank * device_count + device,
            world_size=settings.world_size * device_count,
        )
        for device in range(device_count)
    ]
    with ThreadPoolExecutor(device_count) as pool:  # each waits for all
        futures = [pool.submit(Membership, join, device_count, key) for join in joins]
    errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        for future in futures:
            if future.exception() is None:
                future.result().close()
        raise errors[0]
    return [future.result() for future in futures]
