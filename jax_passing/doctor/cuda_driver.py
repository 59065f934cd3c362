"""NVIDIA's driver, by ctypes: only what the checks of GPUs need. No other part of CUDA has to be there."""

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

LIBRARY = "libcuda.so.1"
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_HOST_PORTABLE_MAPPED = 1 | 2  # CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_DEVICEMAP

_int_p, _void_pp = ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_void_p)
_DevicePointer = ctypes.c_uint64
_FUNCTIONS: dict[str, tuple[type, ...]] = {
    "cuInit": (ctypes.c_uint,),
    "cuDriverGetVersion": (_int_p,),
    "cuGetErrorName": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
    "cuDeviceGetCount": (_int_p,),
    "cuDeviceGet": (_int_p, ctypes.c_int),
    "cuDeviceGetName": (ctypes.c_char_p, ctypes.c_int, ctypes.c_int),
    "cuDeviceTotalMem_v2": (ctypes.POINTER(ctypes.c_size_t), ctypes.c_int),
    "cuDeviceGetPCIBusId": (ctypes.c_char_p, ctypes.c_int, ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (_void_pp, ctypes.c_int),
    "cuDevicePrimaryCtxRelease_v2": (ctypes.c_int,),
    "cuCtxSetCurrent": (ctypes.c_void_p,),
    "cuMemHostAlloc": (_void_pp, ctypes.c_size_t, ctypes.c_uint),
    "cuMemFreeHost": (ctypes.c_void_p,),
    "cuMemAlloc_v2": (ctypes.POINTER(_DevicePointer), ctypes.c_size_t),
    "cuMemFree_v2": (_DevicePointer,),
    "cuMemcpyHtoD_v2": (_DevicePointer, ctypes.c_void_p, ctypes.c_size_t),
    "cuMemcpyDtoH_v2": (ctypes.c_void_p, _DevicePointer, ctypes.c_size_t),
}


class CudaError(Exception):
    """`code`: the driver's result; 0 if it lacks the function."""

    def __init__(self, text: str, code: int = 0):
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Device:
    """`pci`: its address as /sys writes it."""

    ordinal: int
    name: str
    memory_bytes: int
    pci: str


@dataclass(frozen=True)
class CopyRates:
    """Bytes a second, between pinned memory and the device."""

    to_device: float
    from_device: float


class Driver:
    """Raises OSError if there is no library, CudaError where a call of it fails."""

    def __init__(self, library: str = LIBRARY):
        self._library = ctypes.CDLL(library)
        self._call("cuInit", 0)

    def _call(self, name: str, *arguments: object) -> None:
        if code := self._code(name, *arguments):
            raise CudaError(f"{name} returned {self._error_name(code)}", code)

    def _code(self, name: str, *arguments: object) -> int:
        try:
            function = getattr(self._library, name)
        except AttributeError as error:
            raise CudaError(f"the driver has no {name}") from error
        function.argtypes, function.restype = _FUNCTIONS[name], ctypes.c_int
        return int(function(*arguments))

    def _error_name(self, code: int) -> str:
        text = ctypes.c_char_p()
        with suppress(CudaError):
            if self._code("cuGetErrorName", code, ctypes.byref(text)) == 0 and text.value is not None:
                return f"{text.value.decode()} ({code})"
        return str(code)

    def cuda_version(self) -> tuple[int, int]:
        """The newest CUDA that this driver serves."""
        version = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(version))
        return version.value // 1000, version.value % 1000 // 10

    def devices(self) -> list[Device]:
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        return [self._device(ordinal) for ordinal in range(count.value)]

    def _device(self, ordinal: int) -> Device:
        device, memory = ctypes.c_int(), ctypes.c_size_t()
        name, pci = ctypes.create_string_buffer(128), ctypes.create_string_buffer(32)
        self._call("cuDeviceGet", ctypes.byref(device), ordinal)
        self._call("cuDeviceGetName", name, len(name), device)
        self._call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
        self._call("cuDeviceGetPCIBusId", pci, len(pci), device)
        return Device(ordinal, name.value.decode(), memory.value, pci.value.decode().lower())

    @contextmanager
    def context(self, device: Device) -> Iterator[None]:
        """Makes the device's context current: `pinned` and `copy_rates` need it."""
        context, handle = ctypes.c_void_p(), ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(handle), device.ordinal)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        try:
            self._call("cuCtxSetCurrent", context)
            yield
        finally:
            self._code("cuCtxSetCurrent", None)
            self._code("cuDevicePrimaryCtxRelease_v2", handle)

    @contextmanager
    def pinned(self, size_bytes: int) -> Iterator[int]:
        """The address of memory of the host that the device can copy, and see, by itself."""
        address = ctypes.c_void_p()
        self._call("cuMemHostAlloc", ctypes.byref(address), size_bytes, _HOST_PORTABLE_MAPPED)
        try:
            yield address.value or 0
        finally:
            self._code("cuMemFreeHost", address)

    def copy_rates(self, pinned: int, size_bytes: int, rounds: int) -> CopyRates:
        """Measures the fastest of `rounds` copies each way, in bytes/s."""
        there = _DevicePointer()
        self._call("cuMemAlloc_v2", ctypes.byref(there), size_bytes)
        try:
            to = min(self._seconds("cuMemcpyHtoD_v2", there, pinned, size_bytes) for _ in range(rounds))
            back = min(self._seconds("cuMemcpyDtoH_v2", pinned, there, size_bytes) for _ in range(rounds))
        finally:
            self._code("cuMemFree_v2", there)
        return CopyRates(size_bytes / to, size_bytes / back)

    def _seconds(self, name: str, *arguments: object) -> float:
        began = time.perf_counter()
        self._call(name, *arguments)
        return max(time.perf_counter() - began, 1e-9)


def nccl_version(library: str) -> str:
    """Raises OSError if the library can't be loaded, CudaError if it doesn't tell its version."""
    version = ctypes.c_int()
    try:
        code = int(ctypes.CDLL(library).ncclGetVersion(ctypes.byref(version)))
    except AttributeError as error:
        raise CudaError("it has no ncclGetVersion") from error
    if code != 0:
        raise CudaError(f"ncclGetVersion returned {code}", code)
    number = version.value  # since 2.9, two digits more
    major, rest = divmod(number, 10000) if number >= 10000 else divmod(number, 1000)
    return f"{major}.{rest // 100}.{rest % 100}"
