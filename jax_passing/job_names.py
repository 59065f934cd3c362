"""Makes names of jobs from other jobs' names, with marks that users' names may not have."""

import hashlib
from collections.abc import Sequence

HOSTS_MARK = "/hosts "  # is in the names of the jobs in which sets of a job's hosts sum for JAX itself
DEVICES_SUFFIX = "/devices"  # ends the name of the job in which devices are ranks, with strategy "flat"
SHARD_MARK = "/shard "  # is in the names that switches give to the shards of a job
OPERATOR = "/operator"  # isn't a job: the name by which an operator proves a switch's own key
DOCTOR_MARK = "/doctor "  # is in the names of the jobs in which `jax-passing doctor` tries a switch

_MARKS = {
    SHARD_MARK: "the shards of a job",
    HOSTS_MARK: "sets of a job's hosts",
    DOCTOR_MARK: "the trials of jax-passing doctor",
}

HOSTS_CHARACTERS_MAX = 16


def check(name: str) -> None:
    """Raises ValueError if a user's name is too long, says nothing, or has one of the marks."""
    if not 1 <= len(name) <= 128 or not name.isprintable():
        raise ValueError("expected a name of 1 to 128 printable characters")
    if name == OPERATOR:
        raise ValueError(f"expected another name: {OPERATOR!r} is reserved for who has the switch's own key")
    if name.endswith(DEVICES_SUFFIX):
        raise ValueError(f"expected another name: {DEVICES_SUFFIX!r} at the end is reserved for the devices of a job")
    for mark, owner in _MARKS.items():
        if mark in name:
            raise ValueError(f"expected another name: {mark!r} is reserved for {owner}")


def of_devices(job: str) -> str:
    return job + DEVICES_SUFFIX


def of_hosts(job: str, hosts: Sequence[int]) -> str:
    """Returns the name of the job in which these ranks of `job` sum by themselves."""
    ranks = ",".join(map(str, hosts))
    if len(ranks) > HOSTS_CHARACTERS_MAX:  # names have to fit into a connection's first bytes
        ranks = hashlib.sha256(ranks.encode()).hexdigest()[:HOSTS_CHARACTERS_MAX]
    return job + HOSTS_MARK + ranks


def of_shard(job: str, shard: int) -> str:
    """Returns the name of a shard; the first one has the job's own name."""
    return f"{job}{SHARD_MARK}{shard}" if shard else job


def shard_of(job: str) -> int:
    """Returns the number of the shard that a switch's job is. Raises ValueError if there can't be such a shard."""
    number = job.partition(SHARD_MARK)[2]
    if number and (not number.isdecimal() or number != str(int(number)) or number == "0"):
        raise ValueError(f"there is no shard {number!r}")
    return int(number or 0)


def of_doctor(job: str, trial: str) -> str:
    """Returns the name of a doctor's job: another one for each `trial`, with the key of `job`."""
    return job + DOCTOR_MARK + trial


def base(job: str) -> str:
    """Returns the user's name from which a job's name was made: all jobs made from one name have the same key."""
    for mark in _MARKS:
        job = job.partition(mark)[0]
    return job.removesuffix(DEVICES_SUFFIX)
