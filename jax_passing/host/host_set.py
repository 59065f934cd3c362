"""Some hosts of a job sum by themselves, in a job of their own at the same switches. This does no I/O."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

from jax_passing import config, job_names
from jax_passing.errors import Failure, PassingError, failure_of
from jax_passing.host.membership import Membership
from jax_passing.host.outside import HostOutside


class HostSetOwner(Protocol):
    """The owner hears how the set goes, from when it has joined."""

    def set_joined(self, membership: Membership) -> None: ...

    def fail(self, failure: Failure) -> None: ...

    def all_left(self, membership: Membership) -> None: ...


class HostSet:
    """This host joins the others of a set.

    Attributes:
      hosts: their ranks in the job, ascending.
      membership: this host's, in the job of the set.
      is_joined: all of them have joined.
    """

    def __init__(
        self,
        outside: HostOutside,
        settings: config.Settings,
        hosts: Sequence[int],
        owner: HostSetOwner,
        key: bytes | None,
        on_joined: Callable[["HostSet"], None],
        on_failed: Callable[[PassingError], None],
    ):
        """`settings`: of the job. One of the last two is called, unless the set is closed first."""
        assert settings.job is not None  # there is a switch
        self.hosts, self.is_joined = tuple(hosts), False
        self._owner, self._on_joined, self._on_failed = owner, on_joined, on_failed
        join = dataclasses.replace(
            settings,
            job=job_names.of_hosts(settings.job, hosts),
            rank=hosts.index(settings.rank),
            world_size=len(hosts),
        )
        self.membership = Membership(outside, join, self, 0, key)

    # The owner of the membership.

    def joined(self, membership: Membership) -> None:
        self.is_joined = True
        self._owner.set_joined(membership)
        self._on_joined(self)

    def not_joined(self, error: PassingError) -> None:
        failure = self.of_job(failure_of(error))
        self._on_failed(failure.exception())

    def failed(self, membership: Membership, failure: Failure) -> None:
        self._owner.fail(self.of_job(failure))

    def all_left(self, membership: Membership) -> None:
        self._owner.all_left(membership)

    def give_up(self, failure: Failure) -> None:
        """The job has failed: the set doesn't wait for its hosts any more."""
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
