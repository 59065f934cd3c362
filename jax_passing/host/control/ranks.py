"""This process has ranks at the switch: one for the host, with strategy "flat" one for each device, and one for each
set of hosts in which JAX's own collectives sum. This does no I/O."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from jax_passing import config, job_names
from jax_passing.errors import ConfigError, Failure, PassingError, failure_of
from jax_passing.host.control.context import HostContext
from jax_passing.host.control.membership import (
    AllLeft,
    MemberEvent,
    MemberFailed,
    MemberJoined,
    MemberNotJoined,
    Membership,
)

if TYPE_CHECKING:
    from jax_passing._native import Stall

SLICE_S = 0.2  # waits in C++ can't be interrupted: Ctrl-C is seen between two of them


def device_ranks(settings: config.Settings, devices: int) -> int:
    """Returns how many of this host's `devices` get a rank of their own: all, as strategy "flat" needs it, or none.

    Raises:
      ConfigError: there are more devices than a job may have ranks.
    """
    if settings.strategy != "flat" or devices == 1:
        return 0  # a host with one device is that device
    if settings.world_size * devices > config.RANKS_MAX:
        raise ConfigError(
            f"strategy='flat' needs a rank for each device: {settings.world_size} hosts x {devices} devices are more "
            f"than the {config.RANKS_MAX} of a job. Use strategy='passing', which takes one a host."
        )
    return devices


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


class HostSet:
    """Some hosts of the job sum by themselves, in a job of their own at the same switches.

    Attributes:
      hosts: their ranks in the job, ascending.
      membership: this host's, in the job of the set.
      is_joined: all of them have joined.
    """

    def __init__(
        self,
        context: HostContext,
        hosts: Sequence[int],
        on_joined: Callable[["HostSet"], None],
        on_failed: Callable[[PassingError], None],
    ):
        """One of the last two is called, unless the set is closed first."""
        self.hosts, self.on_joined, self._on_failed = tuple(hosts), on_joined, on_failed
        self.is_joined = False
        own = context.replace(
            job=job_names.of_hosts(context.job, hosts),
            rank=hosts.index(context.settings.rank),
            world_size=len(hosts),
        )
        self.membership = Membership(dataclasses.replace(own, device_count=0))

    def give_up(self, failure: Failure) -> None:
        """The job has failed, or the set can't be joined."""
        if not self.is_joined:
            self.membership.close()
            self._on_failed(failure.exception())

    def of_job(self, failure: Failure) -> Failure:
        """Translates a failure of the set's job, which counts ranks of its own."""
        message = failure.message
        if self.hosts != tuple(range(len(self.hosts))):
            these = ", ".join(f"{own} is rank {rank}" for own, rank in enumerate(self.hosts))
            message += f" That job counts its own ranks: in the session, {these}."
        return dataclasses.replace(failure, message=message, ranks=tuple(self.hosts[rank] for rank in failure.ranks))


class Ranks:
    """These ranks begin by calling the switches; `receive` says what comes of it.

    The devices' ranks belong to a second job; device i of host r has rank r * L + i there. A failure of any job is
    one of all.

    Attributes:
      host: this host's membership in the job.
      devices: its devices' in the second job, in the order of the devices; none unless the strategy is "flat".
      sets: its sets of hosts, by their ranks.
    """

    def __init__(self, context: HostContext):
        """Raises ConfigError."""
        self._context, self._settings = context, context.settings
        self._device_ranks = device_ranks(context.settings, context.device_count)
        self.devices: list[Membership] = []
        self._waited_for = 1  # memberships that have still to join
        self.sets: dict[tuple[int, ...], HostSet] = {}
        self._staying: set[Membership] = set()  # whose job has ranks that haven't left
        self._on_all_left: Callable[[None], None] | None = None
        self.host = Membership(context)

    @property
    def _all(self) -> list[Membership]:
        return [self.host, *self.devices, *self._of_sets]

    @property
    def _of_sets(self) -> list[Membership]:
        return [each.membership for each in list(self.sets.values()) if each.is_joined]

    def receive(self, event: MemberEvent) -> "Ranks | PassingError | None":
        """Returns what an event of a membership means: these ranks, now that all have joined; why they can't join, and
        are closed; None: nothing."""
        member = event.membership
        host_set = next((each for each in self.sets.values() if each.membership is member), None)
        match event:
            case MemberJoined():
                self._staying.add(member)
                if host_set is None:
                    return self._joined(member)
                host_set.is_joined = True
                host_set.on_joined(host_set)
            case MemberNotJoined(_, error) if host_set is not None:
                del self.sets[host_set.hosts]  # it is given up once
                host_set.give_up(host_set.of_job(failure_of(error)))
            case MemberNotJoined(_, error):
                self.close()
                return error
            case MemberFailed(_, failure) if host_set is not None:
                self.host.fail(host_set.of_job(failure))
            case MemberFailed(_, failure) if self._waited_for:
                self.close()
                return failure.exception()
            case MemberFailed(_, failure) if member is self.host:
                self._fail_others(failure)
            case MemberFailed(_, failure):
                self.host.fail(self._of_hosts(failure))
            case AllLeft():
                self._staying.discard(member)
                self._tell_if_all_left()
        return None

    # Joining.

    def _joined(self, member: Membership) -> "Ranks | None":
        self._waited_for -= 1
        if member is self.host and self._device_ranks:
            self._waited_for = self._device_ranks
            self.devices = [self._join_device(device) for device in range(self._waited_for)]
        return None if self._waited_for else self

    def _join_device(self, device: int) -> Membership:
        settings, count = self._settings, self._context.device_count
        return Membership(
            self._context.replace(
                job=job_names.of_devices(self._context.job),
                rank=settings.rank * count + device,
                world_size=settings.world_size * count,
                threads=1,  # devices sum side by side anyway
            )
        )

    def join_hosts(
        self, hosts: Sequence[int], on_joined: Callable[[HostSet], None], on_failed: Callable[[Exception], None]
    ) -> None:
        """Joins the others of a set of hosts. `hosts` must include this one. Raises the failure of the ranks, if there
        is one.

        One of the last two is called, unless this is closed first."""
        if self.host.failure is not None:
            raise self.host.failure.exception()
        self.sets[tuple(hosts)] = HostSet(self._context, hosts, on_joined, on_failed)

    # Failing and leaving.

    def _fail_others(self, failure: Failure) -> None:
        for other in (*self.devices, *self._of_sets):
            other.fail(failure, tell=False)  # the other hosts hear of it in their job
        for each in self.sets.values():
            each.give_up(failure)
        self._tell_if_all_left()

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
                if self.failure is not None or self._context.outside.now() >= until:
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

    def times(self) -> list[tuple[list[int], int]]:
        """Returns how long sums took: `_native.Transport.times`, of all ranks that sum the whole."""
        several = [member.transport.native.times() for member in self._all if member not in self.devices[1:]]
        return [
            ([sum(counts) for counts in zip(*(one[0] for one in same), strict=True)], sum(one[1] for one in same))
            for same in zip(*several, strict=True)
        ]

    def oldest(self) -> "tuple[Stall, int] | None":
        """Returns the sum that has waited longest, and for how many microseconds; None if none is under way."""
        found = [oldest for member in self._all if (oldest := member.transport.native.oldest()) is not None]
        return max(found, key=lambda one: one[1], default=None)
