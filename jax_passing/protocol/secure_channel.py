"""Two that know the same key speak TLS 1.3.

Python's ssl takes pre-shared keys from version 3.13 on only. So the key becomes a key pair (Ed25519), and the pair a
certificate, the same at both ends. Each end shows it, and accepts no other: TLS's CertificateVerify then proves to both
that the other has the private key, which is to know the shared one. The session's keys are ephemeral: an attacker who
learns the shared key later can't read what was recorded.

The connection is TLS from its first byte. Its caller says for which job, as the name of the server (SNI), and so the
callee knows whose key to prove. That name has to be a DNS name, so it is the job's in base32, in labels of at most 63
characters; a job's name of more than `JOB_BYTES_MAX` bytes doesn't fit into the 253 of a DNS name.
"""

import base64
import binascii
import datetime
import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from jax_passing import job_names
from jax_passing.errors import ConfigError
from jax_passing.protocol.keys import connection_seed

JOB_BYTES_MAX = 156  # take 250 characters in base32, which are four labels with three dots in between
_LABEL_CHARACTERS = 63
_HANDSHAKE_RECORD = 0x16
_RECORDS = range(0x14, 0x18)
_READ_BYTES = 64 * 1024
_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "jax_passing")])


def _identity(key: bytes) -> tuple[str, bytes]:
    """Returns the certificate, and with it the private key, as PEM."""
    private = Ed25519PrivateKey.from_private_bytes(connection_seed(key))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_NAME)
        .issuer_name(_NAME)
        .public_key(private.public_key())
        .serial_number(1)
        .not_valid_before(datetime.datetime(2000, 1, 1))
        .not_valid_after(datetime.datetime(9999, 1, 1))  # the key's life is its owner's business
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(private, None)
        .public_bytes(serialization.Encoding.PEM)
    )
    of_private = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.decode(), certificate + of_private


def _bare_context(*, server_side: bool) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = False  # who it is, is said by the key alone
    made.verify_mode = ssl.CERT_REQUIRED
    if server_side:
        made.num_tickets = 0  # no session is taken up again
    return made


@lru_cache(maxsize=64)
def context(key: bytes, *, server_side: bool) -> ssl.SSLContext:
    """Serves a connection to somebody who has the same key: everybody else fails with an ssl.SSLError."""
    trusted, own = _identity(key)
    made = _bare_context(server_side=server_side)
    made.load_verify_locations(cadata=trusted)
    descriptor = os.memfd_create("jax_passing")  # ssl reads a private key from a file only, and no disk is to see it
    try:
        os.write(descriptor, own)
        made.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return made


def server_name(job: str) -> str:
    """Returns how a caller names a job in its handshake. Raises ConfigError if the name is too long for that."""
    name = job_names.base(job).encode()
    if len(name) > JOB_BYTES_MAX:
        raise ConfigError(
            f"The name of job {job!r} takes {len(name)} bytes in UTF-8. That of a job with a key may take "
            f"{JOB_BYTES_MAX}: choose a shorter one, and make its key (`jax-passing key --job NAME`)."
        )
    text = base64.b32encode(name).decode().rstrip("=").lower()
    return ".".join(text[at : at + _LABEL_CHARACTERS] for at in range(0, len(text), _LABEL_CHARACTERS))


def job_of(name: str) -> str:
    """Decodes a job from a TLS server name. Raises ValueError if `server_name` makes no such name."""
    text = name.replace(".", "").upper()
    try:
        job = base64.b32decode(text + "=" * (-len(text) % 8)).decode()
    except (binascii.Error, UnicodeError) as error:
        raise ValueError(f"{name!r} names no job") from error
    if not job:
        raise ValueError("no job is named")
    return job


def begins_handshake(first: int) -> bool:
    """Tells a caller that speaks TLS from one that speaks plain text, by the first byte of either."""
    return first == _HANDSHAKE_RECORD


def is_record(first: int) -> bool:
    """Tells a callee that answers by TLS from one that answers in plain text, by the first byte of either."""
    return first in _RECORDS


class _Callee(ssl.SSLObject):
    """Python hands this object to the callback that has to pick the key."""

    key_of: Callable[[str], bytes | None]


def _pick_key(callee: Any, name: str | None, _: ssl.SSLContext) -> int | None:
    """Returns the alert that ends the handshake, or None if it may go on. An exception would be printed, and lost."""
    assert isinstance(callee, _Callee)
    try:
        key = callee.key_of(job_of(name or ""))
    except ValueError:
        key = None
    del callee.key_of  # which may lead to the callee again, and then only the garbage collector would free both
    if key is None:
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
    callee.context = context(key, server_side=True)
    return None


@lru_cache(maxsize=1)
def _callee_context() -> ssl.SSLContext:
    """Serves all connections until their callers have named the job, whose key then takes over."""
    made = _bare_context(server_side=True)
    made.sslobject_class = _Callee
    made.sni_callback = _pick_key
    return made


class Channel:
    """A channel is one end of a connection by TLS, without I/O: it takes the bytes that came, and has those that are to
    be sent.

    Attributes:
      is_open: the other end has proved that it knows the key.
    """

    def __init__(self, wrap: Callable[[ssl.MemoryBIO, ssl.MemoryBIO], ssl.SSLObject]):
        """Is called by `caller` and `callee` only."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = wrap(self._incoming, self._outgoing)
        self.is_open = False

    @classmethod
    def caller(cls, job: str, key: bytes) -> "Channel":
        """Makes the end of the caller. Its first bytes are in `take_outgoing`. Raises ConfigError if the
        job's name is too long."""
        wrap = partial(context(key, server_side=False).wrap_bio, server_hostname=server_name(job))
        made = cls(wrap)
        made.receive(b"")
        return made

    @classmethod
    def callee(cls, key_of: Callable[[str], bytes | None]) -> "Channel":
        """Makes the end of the called one. `key_of`: returns the key of the job that the caller names, or None if
        there is none; it is called once."""
        made = cls(partial(_callee_context().wrap_bio, server_side=True))
        assert isinstance(made._tls, _Callee)
        made._tls.key_of = key_of
        return made

    def receive(self, encrypted: bytes) -> bytes:
        """Returns what the other said by these bytes. Raises ssl.SSLError if it doesn't know the key, or doesn't speak
        TLS. In any case something may have to be sent then."""
        self._incoming.write(encrypted)
        said = bytearray()
        with suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            if not self.is_open:
                self._tls.do_handshake()
                self.is_open = True
            while piece := self._tls.read(_READ_BYTES):
                said += piece
        return bytes(said)

    def send(self, plain: bytes) -> None:
        """Encrypts this for `take_outgoing`."""
        self._tls.write(plain)

    def take_outgoing(self) -> bytes:
        return self._outgoing.read()
