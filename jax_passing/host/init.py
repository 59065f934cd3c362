"""`init`: opens the session of this process, with the settings that it finds."""

import dataclasses
import functools
import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from jax_passing import config, launchers
from jax_passing._compat import jaxprs, patches, process
from jax_passing.config import address_text
from jax_passing.errors import ConfigError, UsageError
from jax_passing.host import scope
from jax_passing.host.interrupts import Interrupts
from jax_passing.host.reports import Reports
from jax_passing.host.session import Session, current

log = logging.getLogger("jax_passing")

_lock = threading.Lock()
_opens_for_jax = False  # this is what the lock is held for


def init(
    switch: str | None = None,
    *,
    job: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    deadline_s: float | None = None,
    warn_s: float | None = None,
    join_deadline_s: float | None = None,
    strategy: str | None = None,
    wire_dtype: str | None = None,
    seed: int | None = None,
    link_gbit: float | None = None,
    key_file: str | Path | None = None,
    confidential: bool | None = None,
    hosts_key_file: str | Path | None = None,
    check_sums: bool | None = None,
    check_equal: bool | None = None,
    check_nans: bool | None = None,
    axis_name: str | Sequence[str] | None = None,
    world_size_min: int | None = None,
    rejoin_wait_s: float | None = None,
    standby: str | None = None,
    lease_s: float | None = None,
    threads: int | None = None,
    metrics: str | None = None,
    record_folder: str | Path | None = None,
    config: str | Path | None = None,
) -> Session:
    """Joins a job and waits for its other hosts.

    What isn't given comes from JAX_PASSING_* variables, then from a TOML file; rank and world size then from
    jax.distributed if it is initialized, or from the launcher (docs/operate/clusters.md). Without a switch the world is
    this host.

    Args:
      switch: "host:port" of the switch. Several with commas share the sum, each behind a link of its own: the same ones
        in the same order on all hosts.
      job: name of the job: hosts of one run share it, other runs have others. Default: the launcher's job id
        (docs/operate/settings.md); required where there is a switch, but no such id.
      rank: index of this host.
      world_size: number of hosts, 1 to 1024; more than 64 need a tree of switches (docs/operate/switches.md).
      deadline_s: how long a sum may make no progress.
      warn_s: after what time to warn about it, and about hosts that don't join.
      join_deadline_s: how long to wait for the switch and the other hosts.
      strategy: of the sums that name none: "passing", "flat", "native" or "auto" (docs/train/collectives.md).
      wire_dtype: how floats travel in the sums that don't say so: "full", "int16", "int8" or "int4"
        (docs/train/collectives.md).
      seed: of the random rounding of "int16", "int8" and "int4". The same seed, program and inputs give the same bits.
      link_gbit: rate of this host's link to the switch, for "auto".
      key_file: file with the job's key, if the switch wants one (docs/operate/switches.md).
      confidential: whether only hosts can read what is summed: neither the switch nor the network can
        (docs/operate/confidential.md). Needs `hosts_key_file`. Default: where there is such a file.
      hosts_key_file: file with a key that all hosts of the job have, and that no switch is told.
      check_sums: whether hosts check each sum that comes back (docs/operate/switches.md). Default: where sums are
        confidential, or where there is a key, and a switch that can't tell forged packets.
      check_equal: whether hosts compare the parameters that `overlap` and `pvary` are given, the first time that these
        come: they must have the same bits on all devices (docs/train/collectives.md). Default: yes. GPUs and TPUs
        compare nothing: a job of CPU hosts and others needs False on the former.
      check_nans: whether the session fails with NonFiniteError when a host brings NaN or an infinity into a sum over
        the switch: it names host, leaf and source line (docs/operate/troubleshooting.md#nan-by-name). Default: no.
      axis_name: the axis (or several, or their names with commas) of local meshes, pmap and vmap that continues over
        the hosts: sums over it go over all devices of all hosts, every other axis stays inside its host. Not needed
        where the mesh spans the processes. The same on all hosts.
      world_size_min: makes the session elastic: the least number of hosts that continue after a failure
        (docs/train/elastic.md).
      rejoin_wait_s: how long hosts that meet again wait for others in the place of those that are lost.
      standby: "host:port" of a switch that takes the place of `switch`, where that is lost or has no slots left; or
        several with commas, which are tried in their order. The same on all hosts.
      lease_s: how long a host may be silent before it is lost, and its switch likewise. Default: 1 in an elastic
        session, else 30 (docs/operate/switches.md).
      threads: with how many threads this host sums, 1, 2, 4, 8 or 16; the hosts settle on the least, and on no more
        than their switches have (docs/data_planes/overview.md#threads). Default: a quarter of the cores, at most 8.
      metrics: "host:port", or a port of this machine for itself, where this host tells its metrics by HTTP
        (docs/operate/watching.md).
      record_folder: where this host writes its flight record if the session fails (docs/operate/watching.md). Default:
        jax-passing-UID in the system's folder for temporary files.
      config: path of a TOML file with these settings (default: JAX_PASSING_CONFIG).

    Raises:
      ConfigError: a setting is unknown, malformed or missing; or multiprocessing imports the script.
      UsageError: this process has an open session, or JAX traces.
      SwitchUnreachableError: no switch answers at the address.
      AuthenticationError: only one of host and switch has a key, or they have different ones.
      JoinError: the switch refused this host, or other hosts didn't join in time.
      PassingError: this process was forked after `init`.
    """
    arguments = {name: value for name, value in locals().items() if name != "config"}  # by the settings' names
    scope.check_process()
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # so Python itself finds it out
        raise ConfigError(
            "jax_passing.init is called in a child process that multiprocessing has started, and that imports the "
            "script for this: it would join as the rank that its parent has. Put what the script does behind "
            "`if __name__ == '__main__':`."
        )
    if jaxprs.tracing():
        raise UsageError(
            "jax_passing.init is called where JAX traces (jit, shard_map, vmap, grad): it would run once, while "
            "tracing. Call it outside, before the function that is traced is called."
        )
    if not _lock.acquire(blocking=_opens_for_jax):  # the session that is being opened may be the wanted one
        raise UsageError("Another thread is in jax_passing.init. One session serves the whole process.")
    try:
        session = current()
        settings, sources = _resolve(arguments, config)
        if session is not None and session.error is None:
            if session.take_over(settings):
                patches.install()
                return session
            of = session.settings
            who = "without a switch" if of.switch is None else f"rank {session.rank} of job {of.job!r}"
            raise UsageError(
                f"This process has a session already ({who}), and a process has one at a time. Use "
                "jax_passing.session.current(), or call its shutdown() first. If JAX's own collectives opened it, call "
                "init before the first of them, or with the same settings."
            )
        if session is not None:
            session.shutdown()
        given = [f"{name}={_text(getattr(settings, name))} ({s})" for name, s in sources.items() if s != "default"]
        log.info("settings that aren't the default: %s", ", ".join(given) or "none")
        if settings.switch is None and sources["world_size"] == "default":
            _say_alone()
        patches.install()
        return _session(settings)
    finally:
        _lock.release()


def is_opening() -> bool:
    """Tells whether a thread is in `init`, or opens the session for JAX's own collectives."""
    return _lock.locked()


def init_for_jax(check: Callable[[config.Settings], None]) -> Session:
    """Returns the open session, or opens one for JAX's own collectives, in a thread of XLA. Raises what `init` does,
    and what `check` raises if JAX's collectives can't go over a session with these settings."""
    global _opens_for_jax
    with _lock:  # another thread may be in `init`
        session = current()
        if session is not None:
            check(session.settings)
            return session
        _opens_for_jax = True
        try:
            settings, _ = _resolve({}, None)
            check(settings)  # before other hosts see this one join
            return _session(settings, is_for_jax=True)
        finally:
            _opens_for_jax = False


def _session(settings: config.Settings, *, is_for_jax: bool = False) -> Session:
    session = _with_metrics(settings, is_for_jax)
    Interrupts(session)
    Reports(session)
    return session


def _with_metrics(settings: config.Settings, is_for_jax: bool) -> Session:
    """Opens a session, and tells its metrics if that is wanted: where it can't, before other hosts see this one."""
    if settings.metrics is None:
        return Session(settings, is_for_jax=is_for_jax)
    from jax_passing.host import metrics
    from jax_passing.metrics import exposition

    listener = exposition.listen(settings.metrics)
    try:
        session = Session(settings, is_for_jax=is_for_jax)
    except BaseException:
        listener.close()
        raise
    metrics.serve(session, listener)
    return session


def _resolve(arguments: dict[str, Any], path: str | Path | None) -> tuple[config.Settings, dict[str, str]]:
    settings, sources = config.resolve(arguments, path, process_in_cluster=process.in_cluster)
    if settings.check_equal and jax.default_backend() != "cpu":
        # Only CPU devices compare. Hosts of both kinds hear at the join that they differ in it, not from programs.
        settings = dataclasses.replace(settings, check_equal=False)
    return settings, sources


@functools.cache
def _say_alone() -> None:
    if launchers.is_actor_of_ray():
        raise ConfigError(
            "jax_passing.init in an actor of Ray's: nothing names a switch, a rank and a number of hosts, so each "
            "actor would train by itself. Write jax_passing.init(switch, job=..., rank=..., world_size=...), or call "
            "jax_passing.ray.init in workers of Ray Train. A world of one is world_size=1."
        )
    log.warning(
        "jax_passing.init: nothing names a switch or a number of hosts, so this host is the whole world, and its sums "
        "go over its own devices. Set %sWORLD_SIZE=1 if that is what you want. For several hosts start the program by "
        "`jax-passing run` or by your launcher, and name the switch (%sSWITCH=HOST:PORT).",
        config.PREFIX,
        config.PREFIX,
    )


def _text(value: Any) -> str:
    """Writes a setting as one does in a variable."""
    if not isinstance(value, tuple):
        return str(value)
    if len(value) == 2 and isinstance(value[1], int):
        return address_text(*value)
    return ",".join(address_text(*each) if isinstance(each, tuple) else each for each in value)


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
