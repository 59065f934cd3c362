"""TLS 1.3 between two that know the same key.

Python's ssl takes pre-shared keys from version 3.13 on only. So the key becomes a key pair (Ed25519), and the pair a
certificate, the same at both ends. Each end shows it, and accepts no other: TLS's CertificateVerify then proves to both
that the other has the private key, which is to know the shared one. The session's keys are ephemeral: whoever learns
the shared key later can't read what was recorded.
"""

import datetime
import os
import ssl
from functools import lru_cache

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from jax_passing.protocol.keys import connection_seed

_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "jax_passing")])


def _identity(key: bytes) -> tuple[str, bytes]:
    """The certificate, and with it the private key, as PEM."""
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


@lru_cache(maxsize=64)
def context(key: bytes, *, server_side: bool) -> ssl.SSLContext:
    """For a connection to somebody who has the same key: everybody else fails with an ssl.SSLError."""
    trusted, own = _identity(key)
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = False  # who it is, is said by the key alone
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(cadata=trusted)
    if server_side:
        made.num_tickets = 0  # no session is taken up again
    descriptor = os.memfd_create("jax_passing")  # ssl reads a private key from a file only, and no disk is to see it
    try:
        os.write(descriptor, own)
        made.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return made
