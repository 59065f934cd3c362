"""This process has ranks at the switch: one for the host, with strategy "flat" one for each device, and one for each
set of hosts in which JAX's own collectives sum. This does no I/O."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from jax_passing import config, job_names
from jax_passing.errors import ConfigError, Failure, PassingError
from jax_passing.host.host_set import HostSet
from jax_passing.host.membership import Membership
from jax_passing.host.outside import HostOutside

SLICE_S = 0.2  # waits in C++ can't be interrupted: Ctrl-C is seen between two of them


def _devices_have_ranks(settings: config.Settings, devices: int) -> bool:
    """Says whether each of this host's `devices` gets a rank of its own, as strategy "flat" needs it.

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
    """A job's links are told to those who predict how long its sums take. They are the same on all hosts.

    Attributes:
      host_gbit: the slowest host's rate; None if no host knows its own.
      switch_gbit: the slowest switch's; None if the switches have a port for each host.
      switches: how many share the job's sums.
    """

    host_gbit: float | None
    switch_gbit: float | None
    switches: int


class RanksOwner(Protocol):
    """The owner hears how the ranks join, unless they are closed first."""

    def joined(self, ranks: "Ranks") -> None: ...

    def not_joined(self, error: PassingError) -> None: ...


class Ranks:
    """These ranks begin by calling the switches; `owner` hears what comes of it.

    The devices' ranks belong to a second job; device i of host r has rank r * L + i there. A failure of any job is
    one of all.

    Attributes:
      host: this host's membership in the job.
      devices: its devices' in the second job, in the order of the devices; none unless the strategy is "flat".
      sets: its sets of hosts, by their ranks.
    """

    def __init__(
        self, outside: HostOutside, settings: config.Settings, owner: RanksOwner, device_count: int, key: bytes | None
    ):
        """The arguments are those of Membership. Raises ConfigError."""
        self._outside, self._settings, self._owner = outside, settings, owner
        self._device_count, self._key = device_count, key
        self._devices_have_ranks = _devices_have_ranks(settings, device_count)
        self.devices: list[Membership] = []
        self._waited_for = 1  # memberships that have still to join
        self.sets: dict[tuple[int, ...], HostSet] = {}
        self._staying: set[Membership] = set()  # whose job has ranks that haven't left
        self._on_all_left: Callable[[None], None] | None = None
        self.host = Membership(outside, settings, self, device_count, key)

    @property
    def _all(self) -> list[Membership]:
        return [self.host, *self.devices, *self._of_sets]

    @property
    def _of_sets(self) -> list[Membership]:
        return [each.membership for each in list(self.sets.values()) if each.is_joined]

    # Joining: the owner of its memberships.

    def joined(self, membership: Membership) -> None:
        self._staying.add(membership)
        self._waited_for -= 1
        if membership is self.host and self._devices_have_ranks:
            self._waited_for = self._device_count
            self.devices = [self._join_device(device) for device in range(self._device_count)]
        elif self._waited_for == 0:
            self._owner.joined(self)

    def _join_device(self, device: int) -> Membership:
        settings, count = self._settings, self._device_count
        assert settings.job is not None  # there is a switch
        join = dataclasses.replace(
            settings,
            job=job_names.of_devices(settings.job),
            rank=settings.rank * count + device,
            world_size=settings.world_size * count,
        )
        return Membership(self._outside, join, self, count, self._key)

    def join_hosts(
        self, hosts: Sequence[int], on_joined: Callable[[HostSet], None], on_failed: Callable[[Exception], None]
    ) -> None:
        """Joins the others of a set of hosts, of which this one is. Raises the failure of the ranks, if there is one.

        One of the last two is called, unless this is closed first."""
        if self.host.failure is not None:
            raise self.host.failure.exception()
        self.sets[tuple(hosts)] = HostSet(
            self._outside,
            self._settings,
            hosts,
            self,
            self._key,
            on_joined=on_joined,
            on_failed=on_failed,
        )

    def set_joined(self, membership: Membership) -> None:
        self._staying.add(membership)

    def not_joined(self, error: PassingError) -> None:
        self.close()
        self._owner.not_joined(error)

    # Failing and leaving.

    def failed(self, membership: Membership, failure: Failure) -> None:
        if self._waited_for:
            self.not_joined(failure.exception())
        elif membership is self.host:
            for other in (*self.devices, *self._of_sets):
                other.fail(failure, tell=False)  # the other hosts hear of it in their job
            for each in self.sets.values():
                each.give_up(failure)
            self._tell_if_all_left()
        else:
            self.host.fail(self._of_hosts(failure))

    def _of_hosts(self, failure: Failure) -> Failure:
        """Translates a failure of the second job, whose ranks count devices."""
        hosts = {rank // len(self.devices) for rank in failure.ranks}
        return dataclasses.replace(failure, ranks=tuple(sorted(hosts)))

    def fail(self, failure: Failure) -> None:
        """Fails all sums; the first failure wins. Tells the switch, which tells the other hosts."""
        self.host.fail(failure)

    def leave(self, on_all_left: Callable[[None], None]) -> None:
        """Tells the switch. `on_all_left`: called once all other hosts have left, too, or a failure has come."""
        self._on_all_left = on_all_left
        for membership in self._all:
            membership.leave()
        self._tell_if_all_left()

    def all_left(self, membership: Membership) -> None:
        self._staying.discard(membership)
        self._tell_if_all_left()

    def _tell_if_all_left(self) -> None:
        if self._on_all_left is not None and (not self._staying or self.host.failure is not None):
            on_all_left, self._on_all_left = self._on_all_left, None
            on_all_left(None)

    def close(self) -> None:
        """Fails what is pending. Bounded in time."""
        for membership in (self.host, *self.devices, *(each.membership for each in self.sets.values())):
            membership.close()

    # This may be asked on any thread, once they have joined.

    @property
    def failure(self) -> Failure | None:
        """Returns why sums fail from now on, if so."""
        if (failure := self.host.failure) is not None:
            return failure
        return next((self._of_hosts(failure) for device in self.devices if (failure := device.failure)), None)

    @property
    def links(self) -> Links:
        return Links(self.host.link_gbit, self.host.switch_link_gbit, len(self._settings.switch or ()))

    def drain(self, until: float) -> bool:
        """Waits for pending sums. False if some are pending at `until` (monotonic) still, or have failed."""
        for membership in self._all:
            while not membership.transport.drain(SLICE_S):
                if self.failure is not None or self._outside.now() >= until:
                    return False
        return self.failure is None

    def stats(self) -> dict[str, int]:
        """Returns counters of all ranks. Sums and their bytes count once each, though every device carries its part."""
        host, *others = self._all
        total = host.transport.stats()
        for membership in others:
            is_counted = membership in self.devices[1:]  # with the first device
            for name, value in membership.transport.stats().items():
                if name.endswith("_us"):
                    total[name] = max(total[name], value)
                elif not (is_counted and name in ("sums_started", "sums_completed", "tensor_bytes")):
                    total[name] += value
        return total
