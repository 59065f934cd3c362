"""Finds out whether this machine can run the eBPF data plane."""

import functools
import os
import socket

from jax_passing.errors import ConfigError
from jax_passing.switch.data_planes import ebpf


@functools.cache
def missing() -> str | None:
    """Why not; None if it can."""
    if os.geteuid() != 0:
        return "loading a program into the kernel needs root"
    if not ebpf.OBJECT.exists():
        return "jax_passing was built without clang and libbpf-dev"
    try:
        program = ebpf.load(bytes(8), 1)
        program.attach_to_ingress(socket.if_nametoindex("lo"))
        program.close()
    except (ConfigError, OSError) as error:
        return str(error)
    return None
