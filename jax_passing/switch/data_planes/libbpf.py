"""The eBPF data plane calls the little of libbpf that it needs by ctypes: the package doesn't depend on it.

A program, its maps and its links to devices live as long as this process holds them open: nothing is pinned, so the
kernel removes all of it when the process ends, however it ends.
"""

import ctypes
import os
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

TCX_INGRESS = 46  # enum bpf_attach_type of linux/bpf.h
_RING_POLL_MS = 100
# struct bpf_link_info, as far as a tcx link fills it: the device stands after three 32-bit numbers and a gap.
_LINK_INFO_BYTES, _LINK_INFO_DEVICE_AT = 24, 16
LOCKED = 4  # BPF_F_LOCK: under the spin lock that stands in the value

_PRINT = ctypes.CFUNCTYPE(c_int, c_int, c_char_p, c_void_p)
_RECORD = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)


class _BatchOptions(ctypes.Structure):
    _fields_ = (("sz", c_size_t), ("elem_flags", c_uint64), ("flags", c_uint64))


def library() -> ctypes.CDLL:
    """Loads the library. Raises OSError if libbpf 1 isn't installed."""
    libbpf = ctypes.CDLL("libbpf.so.1")
    for name, result, arguments in (
        ("bpf_object__open_file", c_void_p, (c_char_p, c_void_p)),
        ("bpf_object__load", c_int, (c_void_p,)),
        ("bpf_object__close", None, (c_void_p,)),
        ("bpf_object__find_map_by_name", c_void_p, (c_void_p, c_char_p)),
        ("bpf_object__find_program_by_name", c_void_p, (c_void_p, c_char_p)),
        ("bpf_program__fd", c_int, (c_void_p,)),
        ("bpf_map__fd", c_int, (c_void_p,)),
        ("bpf_map__value_size", c_uint32, (c_void_p,)),
        ("bpf_map__set_max_entries", c_int, (c_void_p, c_uint32)),
        ("bpf_map__set_initial_value", c_int, (c_void_p, c_char_p, c_size_t)),
        ("bpf_map_update_elem", c_int, (c_int, c_char_p, c_char_p, c_uint64)),
        ("bpf_map_lookup_elem_flags", c_int, (c_int, c_char_p, c_char_p, c_uint64)),
        ("bpf_map_delete_elem", c_int, (c_int, c_char_p)),
        ("bpf_map_update_batch", c_int, (c_int, c_char_p, c_char_p, POINTER(c_uint32), POINTER(_BatchOptions))),
        ("bpf_link_create", c_int, (c_int, c_int, c_int, c_void_p)),
        ("bpf_obj_get_info_by_fd", c_int, (c_int, c_char_p, POINTER(c_uint32))),
        ("libbpf_num_possible_cpus", c_int, ()),
        ("ring_buffer__new", c_void_p, (c_int, _RECORD, c_void_p, c_void_p)),
        ("ring_buffer__poll", c_int, (c_void_p, c_int)),
        ("ring_buffer__free", None, (c_void_p,)),
        ("libbpf_set_print", c_void_p, (_PRINT,)),
    ):
        function = getattr(libbpf, name)
        function.restype, function.argtypes = result, arguments
    return libbpf


def _checked(result: int, what: str) -> int:
    """Raises OSError if libbpf returns a negative number, which is that of an error."""
    if result < 0:
        raise OSError(-result, f"{what}: {os.strerror(-result)}")
    return result


class Map:
    """The keys of a map are 32-bit numbers."""

    def __init__(self, libbpf: ctypes.CDLL, handle: int):
        self.libbpf = libbpf
        self.fd: int = libbpf.bpf_map__fd(handle)
        self.value_bytes: int = libbpf.bpf_map__value_size(handle)

    def write(self, key: int, value: bytes) -> None:
        assert len(value) == self.value_bytes
        _checked(self.libbpf.bpf_map_update_elem(self.fd, _key(key), value, 0), "bpf_map_update_elem")

    def write_locked(self, first: int, values: list[bytes]) -> None:
        """Writes to the keys from `first` on, under the lock."""
        assert all(len(value) == self.value_bytes for value in values)
        keys = b"".join(_key(first + i) for i in range(len(values)))
        options = _BatchOptions(ctypes.sizeof(_BatchOptions), LOCKED, 0)
        count = c_uint32(len(values))
        done = self.libbpf.bpf_map_update_batch(self.fd, keys, b"".join(values), byref(count), byref(options))
        _checked(done, "bpf_map_update_batch")

    def read(self, key: int, *, locked: bool = False, copies: int = 1) -> bytes:
        """Reads a value. `copies`: one for each possible processor in a per-processor map."""
        value = ctypes.create_string_buffer(-(-self.value_bytes // 8) * 8 * copies)
        flags = LOCKED if locked else 0
        _checked(self.libbpf.bpf_map_lookup_elem_flags(self.fd, _key(key), value, flags), "bpf_map_lookup_elem")
        return value.raw

    def remove(self, key: int) -> None:
        """Removes a key; nothing happens if it isn't there."""
        self.libbpf.bpf_map_delete_elem(self.fd, _key(key))


def _key(number: int) -> bytes:
    return bytes(c_uint32(number))


class RingReader:
    """Calls `on_record` with each record that the program puts into a ring buffer, on a thread of its own."""

    def __init__(self, ring: Map, on_record: Callable[[bytes], None]):
        self._libbpf = ring.libbpf
        self._closing = False

        def receive(_: int, data: int, size: int) -> int:
            on_record(ctypes.string_at(data, size))
            return 0

        self._receive = _RECORD(receive)  # as long as the ring may call it
        self._ring = self._libbpf.ring_buffer__new(ring.fd, self._receive, None, None)
        if self._ring is None:
            raise OSError("libbpf can't read the ring buffer")
        self._thread = threading.Thread(target=self._serve, name="passing-results", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        # Results wait here for a processor, and those that the kernel sends overtake them: then hosts ask again.
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        while not self._closing:
            self._libbpf.ring_buffer__poll(self._ring, _RING_POLL_MS)

    def close(self) -> None:
        self._closing = True
        self._thread.join()
        self._libbpf.ring_buffer__free(self._ring)


class BpfProgram:
    """This is a compiled object file in the kernel.

    Raises OSError, with what the kernel's verifier said, if it can't be loaded.
    """

    def __init__(self, path: Path, program: str, *, constants: bytes, max_entries: dict[str, int]):
        self._libbpf = library()
        self._links: set[int] = set()
        self._object = None
        said: list[str] = []
        listener = _PRINT(_collect(said))
        previous = self._libbpf.libbpf_set_print(listener)
        try:
            # On failure libbpf 1 returns NULL and sets errno.
            self._object = self._libbpf.bpf_object__open_file(str(path).encode(), None)
            if self._object is None:
                raise OSError(f"libbpf can't open {path}: {' '.join(said[-2:])}")
            _checked(
                self._libbpf.bpf_map__set_initial_value(self._find_map(".rodata"), constants, len(constants)),
                "constants",
            )
            for name, entries in max_entries.items():
                _checked(self._libbpf.bpf_map__set_max_entries(self._find_map(name), entries), name)
            result = self._libbpf.bpf_object__load(self._object)
            if result < 0:
                raise OSError(-result, f"{os.strerror(-result)}: {' '.join(said[-6:])}")
        except BaseException:
            self.close()
            raise
        finally:
            self._libbpf.libbpf_set_print(ctypes.cast(previous, _PRINT))
        found = self._libbpf.bpf_object__find_program_by_name(self._object, program.encode())
        assert found is not None
        self._fd: int = self._libbpf.bpf_program__fd(found)
        self.processors: int = self._libbpf.libbpf_num_possible_cpus()

    def _find_map(self, name: str) -> int:
        found: int | None = self._libbpf.bpf_object__find_map_by_name(self._object, name.encode())
        assert found is not None, f"the object file has no map {name}"
        return found

    def map(self, name: str) -> Map:
        return Map(self._libbpf, self._find_map(name))

    def attach_to_ingress(self, device: int) -> int:
        """Attaches to the network device with this index, until `detach` or `close`; returns the link. Needs Linux 6.6.

        Raises OSError.
        """
        link = _checked(self._libbpf.bpf_link_create(self._fd, device, TCX_INGRESS, None), "bpf_link_create")
        self._links.add(link)
        return link

    def device_of(self, link: int) -> int:
        """Returns the index of its device; 0 if that has gone, or the program was taken off it."""
        info = ctypes.create_string_buffer(_LINK_INFO_BYTES)
        size = c_uint32(_LINK_INFO_BYTES)
        _checked(self._libbpf.bpf_obj_get_info_by_fd(link, info, byref(size)), "bpf_obj_get_info_by_fd")
        (index,) = struct.unpack_from("=I", info, _LINK_INFO_DEVICE_AT)
        assert isinstance(index, int)
        return index

    def detach(self, link: int) -> None:
        self._links.remove(link)
        os.close(link)

    def close(self) -> None:
        for link in self._links:
            os.close(link)
        self._links.clear()
        if self._object is not None:
            self._libbpf.bpf_object__close(self._object)
            self._object = None


def possible_processors() -> int:
    """Returns how many processors there may be. Raises OSError."""
    return _checked(library().libbpf_num_possible_cpus(), "libbpf_num_possible_cpus")


def _collect(said: list[str]) -> Callable[[int, bytes, Any], int]:
    """Collects what libbpf reports, line by line; `arguments` is C's va_list."""
    libc = ctypes.CDLL(None)
    libc.vsnprintf.argtypes = (c_char_p, c_size_t, c_char_p, c_void_p)

    def report(level: int, form: bytes, arguments: Any) -> int:
        if level == 0:  # warnings; the rest is for debugging
            line = ctypes.create_string_buffer(4096)
            libc.vsnprintf(line, len(line), form, arguments)
            said.append(line.value.decode(errors="replace").strip())
        return 0

    return report
