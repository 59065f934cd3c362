"""This host warns of collectives that stay inside it although there are others, as nothing else would show that: where
one is traced, or when a session ends without sums."""

import logging

from jax_passing._compat.stacks import warn_in_users_line
from jax_passing.errors import InsideHostWarning

log = logging.getLogger("jax_passing")

_NOTED_MAX = 8

_noted: dict[str, bool] = {}  # traced in this session, in order: whether it may have been meant to go over the hosts
_between_programs = 0  # sums of this session that no program made


def begin() -> None:
    """A session begins."""
    global _between_programs
    _between_programs = 0
    _noted.clear()


def between_programs(sums: int) -> None:
    """`process_sum`, `barrier` or `on_rank_zero` makes `sums` sums."""
    global _between_programs
    _between_programs += sums


def stayed(what: str, *, doubtful: bool) -> None:
    """One has been traced that stays inside: "jax.lax.psum over 'd' at train.py:12".

    `doubtful`: whether it may have been meant to go over the hosts.
    """
    if what not in _noted and list(_noted.values()).count(doubtful) < _NOTED_MAX:
        _noted[what] = doubtful
        log.info("%s stays inside this host", what)


def warn_of(what: str, why: str) -> None:
    """Warns of a collective that stays inside, though it may have been meant to go over the hosts."""
    warn_in_users_line(InsideHostWarning, f"{what} stays inside this host, {why}")


def end(who: str, axis_names: tuple[str, ...], sums: int) -> None:
    """A session of several hosts ends without an error, and made `sums` sums over the hosts in all."""
    if sums > _between_programs or (sums and not any(_noted.values())):
        return
    declares = ", ".join(map(repr, axis_names)) or "no axis"
    made = (
        "only process_sum, barrier or on_rank_zero went over the hosts, and no program of it."
        if sums
        else "nothing was summed over the hosts: each of them has computed by itself."
    )
    noted = f" What stayed inside this host: {'; '.join(_noted)}." if _noted else ""
    warn_in_users_line(
        InsideHostWarning,
        f"The session of {who} ends, but {made} "
        f"init(axis_name=...) declares {declares}.{noted} Sums go over the hosts if jax_passing makes them (psum, "
        "pmean, overlap ...) over an axis that init(axis_name=...) declares, by the name that it has in shard_map, "
        "pmap or vmap.",
    )
