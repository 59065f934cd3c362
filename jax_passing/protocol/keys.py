"""Keys are read here, and others derived from them. docs/operate/switches.md says who has which and what it protects.

A *switch key* is all that a switch is given. A job's key is derived from it by the job's name, so that an owner of one
job's key can join that job, and no other. A key file has one line, the kind and 64 hexadecimal digits:

    switch 1f0e...        job 77ab...        hosts 9c02...

The *hosts' key* is the hosts' alone: they mask the lanes of confidential sums by it.
"""

import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import overload

from jax_passing.errors import ConfigError
from jax_passing.protocol.packet import KEY_WORDS

log = logging.getLogger("jax_passing")

KEY_BYTES = 32
CHECK_KEY_BYTES = MASK_KEY_BYTES = NONCE_BYTES = 16
SWITCH, JOB, HOSTS = "switch", "job", "hosts"  # the kinds of key files
_KINDS = {SWITCH: "a switch key", JOB: "a job key", HOSTS: "a hosts' key"}
_HOW_TO_GET = {
    SWITCH: "A switch has a key of its own, which `jax-passing key` makes",
    JOB: "Hosts have the key of their job: `jax-passing key --switch-key FILE --job NAME` prints it",
    HOSTS: "Hosts have a key that no switch is told: `jax-passing key --hosts` makes it",
}
HOW_TO_GET_A_KEY = (
    "Who runs the switch prints it by `jax-passing key --switch-key FILE --job NAME`; then set JAX_PASSING_KEY_FILE to "
    "a file with it on every host (docs/operate/switches.md)."
)
_LINE = re.compile(rf"(\w+) ([0-9a-f]{{{2 * KEY_BYTES}}})\s*")


def _derived(key: bytes, purpose: bytes, content: bytes = b"") -> bytes:
    """Returns KEY_BYTES, by BLAKE2b with a key (RFC 7693). `purpose`, of at most 16 bytes, keeps uses of a key
    apart."""
    return hashlib.blake2b(content, digest_size=KEY_BYTES, key=key, person=purpose).digest()


def new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def job_key(switch_key: bytes, job: str) -> bytes:
    return _derived(switch_key, b"passing job", job.encode())


def connection_seed(key: bytes) -> bytes:
    """Returns the seed of the key pair by which both ends of a connection know each other."""
    return _derived(key, b"passing tls")


def sealed(key: bytes | None, about: str, text: str) -> str:
    """Returns the text, behind a seal if there is a job's key: only who has that can seal a text. `about`: what it is
    about, so that it can't stand for something else."""
    return text if key is None else f"{_seal(key, about, text)} {text}"


def unsealed(key: bytes | None, about: str, text: str) -> str | None:
    """Returns the text that `sealed` was given, or None if this is another one."""
    if key is None:
        return text
    seal, _, content = text.partition(" ")
    return content if hmac.compare_digest(seal.encode(), _seal(key, about, content).encode()) else None


def _seal(key: bytes, about: str, text: str) -> str:
    content = about.encode()
    return _derived(key, b"passing told", len(content).to_bytes(8) + content + text.encode()).hex()


def check_key(key: bytes | None, job: str, nonces: Sequence[bytes]) -> bytes:
    """Returns the key with which an epoch's hosts check sums (xla_ffi/host/packets/sum_check.h).

    `key`: the hosts' with nonces as those of `mask_key`; else the job's with those of its shards. Without a key, a
    sniffer of the nonces knows the result.
    """
    return _of_epoch(key or bytes(KEY_BYTES), b"passing check", job, nonces)[:CHECK_KEY_BYTES]


def mask_key(hosts_key: bytes, job: str, nonces: Sequence[bytes]) -> bytes:
    """Returns the key with which an epoch's hosts mask lanes (xla_ffi/host/packets/lane_masks.h).

    `nonces`: drawn by the hosts for this epoch, in the order of their ranks. As each host has its own one in the key,
    nobody can have it use a key again.
    """
    assert all(len(nonce) == NONCE_BYTES for nonce in nonces)
    return _of_epoch(hosts_key, b"passing masks", job, nonces)[:MASK_KEY_BYTES]


def _of_epoch(key: bytes, purpose: bytes, job: str, nonces: Sequence[bytes]) -> bytes:
    parts = b"".join(len(nonce).to_bytes(1) + nonce for nonce in nonces)
    return _derived(key, purpose, len(nonces).to_bytes(4) + parts + job.encode())


def digest(hosts_key: bytes) -> str:
    """Returns a text by which hosts compare their keys, and from which nobody learns them."""
    return _derived(hosts_key, b"passing alike").hex()[:16]


def packet_key(secret: bytes) -> bytes:
    """Returns the key of packets' tags (xla_ffi/wire/packet_key.h), by SHAKE-256."""
    return hashlib.shake_256(b"passing packet key" + secret).digest(16 + 2 * 4 * KEY_WORDS)


def of_plane(key: bytes, plane: int) -> bytes:
    """Returns the key of packets' tags at one plane of a switch. The numbers of a job's packets are the same at all of
    them, so a packet must not pass at another one."""
    return key if plane == 0 else hashlib.shake_256(b"passing plane" + bytes([plane]) + key).digest(len(key))


def pair_of_plane(pair: tuple[bytes, bytes] | None, plane: int) -> tuple[bytes, bytes] | None:
    """Returns the keys of contributions and of results there; None if there are none."""
    return None if pair is None else (of_plane(pair[0], plane), of_plane(pair[1], plane))


def of_thread(key: bytes, thread: int) -> bytes:
    """Returns the check or mask key of one of a host's threads: each counts positions from 0."""
    return key if thread == 0 else _derived(key, b"passing thread", bytes([thread]))[: len(key)]


def key_line(kind: str, key: bytes) -> str:
    """Returns the contents of a key file."""
    return f"{kind} {key.hex()}\n"


@overload
def read_key(path: Path, kind: str) -> bytes: ...
@overload
def read_key(path: None, kind: str) -> None: ...
def read_key(path: Path | None, kind: str) -> bytes | None:
    """Returns the key in a file of this kind; None without a file. Warns if others may read it.

    Raises:
      ConfigError: there is no such file, or it has no such key.
    """
    if path is None:
        return None
    found, key = read_any_key(path)
    if found != kind:
        raise ConfigError(
            f"{path} has {_KINDS[found]}, but {_KINDS[kind]} is needed. {_HOW_TO_GET[kind]} (docs/operate/switches.md)."
        )
    return key


def read_any_key(path: Path) -> tuple[str, bytes]:
    """Returns the key in a file, and its kind. Warns and raises as `read_key`."""
    try:
        with open(path, encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(1024)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"Can't read the key file {path}: {error}.") from error
    found = _LINE.fullmatch(content)
    if found is None or found[1] not in _HOW_TO_GET:
        raise ConfigError(f"{path} is no key file: expected one line, as `jax-passing key` prints it.")
    if stat.S_ISREG(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
        log.warning("the key file %s can be read by others than its owner: chmod 600 it", path)
    return found[1], bytes.fromhex(found[2])
