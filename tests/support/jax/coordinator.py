"""A coordinator of jax.distributed in this process, and JAX's own client of it."""

import contextlib
import socket

from jax._src.lib import _jax


@contextlib.contextmanager
def coordinator_of_one():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    service = _jax.get_distributed_runtime_service(f"127.0.0.1:{port}", 1)
    client = _jax.get_distributed_runtime_client(f"127.0.0.1:{port}", 0)
    client.connect()
    try:
        yield client
    finally:
        client.shutdown()
        service.shutdown()
