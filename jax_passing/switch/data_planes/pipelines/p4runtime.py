"""This reaches a switch with a P4Runtime server (p4.org's gRPC API): Tofino's agents, bmv2's simple_switch_grpc."""

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from jax_passing.switch.data_planes.device import Device
from jax_passing.switch.data_planes.pipeline import DeviceError, Entry, UnreadableError
from jax_passing.switch.data_planes.pipelines import protobuf
from jax_passing.switch.data_planes.pipelines.p4info import P4Info, Part, Thing
from jax_passing.switch.data_planes.pipelines.protobuf import encode

try:
    import grpc
except ImportError:
    grpc = None

_CODES = {code.value[0]: code for code in grpc.StatusCode if code.value[0]} if grpc is not None else {}  # but OK's
TIMEOUT_S = 2.0
STUCK_S = 0.5  # after the time-out, for gRPC to say so
PIPELINE_TIMEOUT_S = 60.0  # a device may compile the program
RECONNECT_MS = 1000  # by itself gRPC would wait up to two minutes for a device that is restarted
INSERT, MODIFY, DELETE = 1, 2, 3
VERIFY_AND_COMMIT = 3
# An entity is of one of these kinds.
TABLE, COUNTER, REPLICATION, REGISTER = 2, 7, 9, 11

Answers = queue.SimpleQueue[bytes | Exception | None]


def _bytes(value: int, part: Part) -> bytes:
    """Returns a number without leading zeros, which is how P4Runtime writes them."""
    assert value.bit_length() <= part.bits, (value, part)
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def _listen(call: Any, answers: Answers) -> None:
    """Puts what the call streams to us into the queue, at its end None or the error.

    In a thread of its own: when a server goes away, a call that ends at that moment may leave who iterates over it
    waiting for good, whatever its deadline (grpcio 1.85).
    """

    def read() -> None:
        try:
            for answer in call:
                answers.put(answer)
            answers.put(None)
        except grpc.RpcError as error:
            answers.put(error)

    threading.Thread(target=read, name="jax_passing-p4runtime", daemon=True).start()


class CallError(DeviceError):
    """A call failed; `code` says how."""

    def __init__(self, message: str, code: Any):
        super().__init__(message)
        self.code = code


def _status(error: Any) -> tuple[Any, str]:
    """Returns code and text of a call that failed. Those of a write, which could be of several parts, stand in its
    details."""
    code, text = error.code(), error.details()
    if code is grpc.StatusCode.UNKNOWN:
        details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
        with suppress(ValueError):  # it isn't google.rpc.Status
            for part in protobuf.messages(protobuf.decode(details), 3):
                refusal = protobuf.decode(protobuf.data(part, 2))  # p4.v1.Error
                if found := _CODES.get(protobuf.number(refusal, 1)):
                    return found, protobuf.text(refusal, 2)
    return code, text


class P4Runtime:
    """Connects when it is made. Raises DeviceError, as all methods do."""

    def __init__(self, device: Device):
        if grpc is None:
            raise DeviceError("P4Runtime needs grpcio: pip install grpcio")
        if not device.program or not device.p4info or device.lanes is None:
            raise DeviceError("the device file has no program, p4info or lanes, which P4Runtime needs")
        self._name = device.runtime
        self._device_id = device.device_id
        self._info = P4Info(device.p4info)
        if self._info.lanes not in (0, device.lanes):  # 0: it doesn't tell
            raise DeviceError(
                f"the device file says that packets have {device.lanes} lanes, but the program has {self._info.lanes}, "
                f"says {device.p4info}: set lanes = {self._info.lanes}, or name the files of the other program"
            )
        try:
            self._program = Path(device.program).read_bytes()
        except OSError as error:
            raise DeviceError(f"can't read the program: {error}") from error
        self.lanes = device.lanes
        self._groups: dict[int, bytes] = {}
        # The highest election id controls the device: later controllers win over earlier ones.
        self._election = encode((1, time.time_ns()), (2, 1))
        self._channel = grpc.insecure_channel(device.runtime, options=[("grpc.max_reconnect_backoff_ms", RECONNECT_MS)])
        self._stream: Any = None
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._answers: Answers = queue.SimpleQueue()
        self._lost = ""  # why it isn't ours since the stream began: said once by the server, but to be heard by all

    @property
    def register_cells(self) -> int:
        return self._info.register("sequence").size

    def has_table(self, table: str) -> bool:
        return self._info.has_table(table)

    def attach(self) -> None:
        self._end_stream()
        self._become_controller()
        self._delete_all_groups()
        config = encode((1, self._info.encoded), (2, self._program))
        request = ((1, self._device_id), (3, self._election), (4, VERIFY_AND_COMMIT), (5, config))
        self._call("SetForwardingPipelineConfig", encode(*request), PIPELINE_TIMEOUT_S)  # empties everything
        self._groups.clear()

    def _delete_all_groups(self) -> None:
        """Deletes the groups of a controller before us: bmv2 keeps them when a program is loaded, and forgets that it
        has them."""
        try:
            held = list(self._read(encode((REPLICATION, encode((1, b""))))))
        except CallError as error:
            # It has no program yet, or can't tell.
            if error.code not in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED):
                raise
            return
        for entity in held:
            self._write(DELETE, encode((REPLICATION, protobuf.data(entity, REPLICATION))))

    def _become_controller(self) -> None:
        """Opens a stream: one that stays open says who controls the device."""
        requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        requests.put(encode((1, encode((1, self._device_id), (3, self._election)))))
        answers: Answers = queue.SimpleQueue()
        self._requests, self._answers, self._lost = requests, answers, ""
        self._stream = self._channel.stream_stream("/p4.v1.P4Runtime/StreamChannel")(iter(requests.get, None))
        _listen(self._stream, answers)
        try:
            answer = answers.get(timeout=TIMEOUT_S)
        except queue.Empty:
            raise DeviceError(f"no answer from the P4Runtime server at {self._name}") from None
        self._check_controls(answer)

    def _check_controls(self, answer: bytes | Exception | None) -> None:
        """Checks `answer`, which came from the stream."""
        if answer is None:
            raise DeviceError(f"the P4Runtime server at {self._name} ended the stream that says who controls it")
        if isinstance(answer, Exception):
            raise self._error("StreamChannel", answer)
        message = protobuf.decode(answer)
        if 1 not in message:
            return  # not about who controls the device
        arbitration = protobuf.decode(protobuf.data(message, 1))
        status = protobuf.decode(protobuf.data(arbitration, 4))
        if protobuf.number(status, 1) != 0:
            raise DeviceError(f"{self._name} has another controller: {protobuf.text(status, 2)}")

    def check_control(self) -> None:
        try:
            while not self._lost and not self._answers.empty():
                self._check_controls(self._answers.get())
        except DeviceError as error:
            self._lost = str(error)
        if self._lost:
            raise DeviceError(self._lost)

    def _end_stream(self) -> None:
        if self._stream is not None:
            self._requests.put(None)
            self._stream.cancel()
            self._stream = None

    def _error(self, method: str, error: Any) -> CallError:
        code, text = _status(error)
        return CallError(f"P4Runtime server at {self._name}: {method}: {code.name} {text}", code)

    def _call(self, method: str, request: bytes, timeout_s: float | None = None) -> bytes:
        try:
            answer: bytes = self._channel.unary_unary(f"/p4.v1.P4Runtime/{method}")(
                request, timeout=timeout_s or TIMEOUT_S
            )
            return answer
        except grpc.RpcError as error:
            raise self._error(method, error) from error

    def _write(self, kind: int, entity: bytes) -> None:
        update = encode((1, kind), (2, entity))
        self._call("Write", encode((1, self._device_id), (3, self._election), (4, update)))

    def _read(self, entity: bytes) -> Iterator[protobuf.Message]:
        request = encode((1, self._device_id), (2, entity))
        call = self._channel.unary_stream("/p4.v1.P4Runtime/Read")(request, timeout=TIMEOUT_S)
        answers: Answers = queue.SimpleQueue()
        _listen(call, answers)
        while True:
            try:
                answer = answers.get(timeout=TIMEOUT_S + STUCK_S)
            except queue.Empty:
                call.cancel()
                raise self._error("Read", call) from None
            if answer is None:
                return
            if isinstance(answer, Exception):
                raise self._error("Read", answer) from answer
            yield from protobuf.messages(protobuf.decode(answer), 1)

    def _match(self, table: Thing, entry: Entry) -> list[protobuf.Field]:
        """Returns the match, with the priority."""
        assert set(table.parts) == set(entry.match) or (entry.priority and set(entry.match) <= set(table.parts)), entry
        fields: list[protobuf.Field] = []
        for name, value in entry.match.items():
            part = table.parts[name]
            if entry.priority:
                mask = entry.masks[name] & ((1 << part.bits) - 1)
                kind = (3, encode((1, _bytes(value & mask, part)), (2, _bytes(mask, part))))  # ternary
            else:
                kind = (2, encode((1, _bytes(value, part))))  # exact
            fields.append((2, encode((1, part.number), kind)))
        return [*fields, (4, entry.priority)] if entry.priority else fields

    def insert(self, entry: Entry) -> None:
        table, action = self._info.table(entry.table), self._info.action(entry.action)
        assert set(action.parts) == set(entry.parameters), (action, entry)
        parameters = [
            (4, encode((2, part.number), (3, _bytes(entry.parameters[name], part))))
            for name, part in action.parts.items()
        ]
        call = encode((1, encode((1, action.number), *parameters)))
        self._write(INSERT, encode((TABLE, encode((1, table.number), (3, call), *self._match(table, entry)))))

    def delete(self, entry: Entry) -> None:
        table = self._info.table(entry.table)
        self._write(DELETE, encode((TABLE, encode((1, table.number), *self._match(table, entry)))))

    def entry_count(self, table: str) -> int:
        return sum(1 for _ in self._read(encode((TABLE, encode((1, self._info.table(table).number))))))

    def insert_group(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        copies = [(2, encode((1, port), (2, number))) for port, number in replicas]
        entity = encode((REPLICATION, encode((1, encode((1, group), *copies)))))
        try:
            self._write(INSERT, entity)
        except CallError as error:
            if error.code is not grpc.StatusCode.ALREADY_EXISTS:
                raise
            self._write(MODIFY, entity)  # left by an insertion whose answer was lost
        self._groups[group] = entity

    def delete_group(self, group: int) -> None:
        if group in self._groups:
            self._write(DELETE, self._groups.pop(group))

    def counter(self, name: str) -> list[int]:
        counter = self._info.counter(name)
        packets = [0] * counter.size
        for entity in self._read(encode((COUNTER, encode((1, counter.number))))):
            cell = protobuf.decode(protobuf.data(entity, COUNTER))
            index = protobuf.number(protobuf.decode(protobuf.data(cell, 2)), 1)
            packets[index] = protobuf.number(protobuf.decode(protobuf.data(cell, 3)), 2)
        return packets

    def register(self, name: str, index: int) -> int:
        register = self._info.register(name)
        try:
            entities = list(self._read(encode((REGISTER, encode((1, register.number), (2, encode((1, index))))))))
        except CallError as error:
            if error.code is grpc.StatusCode.UNIMPLEMENTED:
                raise UnreadableError(str(error)) from error
            raise
        for entity in entities:
            cell = protobuf.decode(protobuf.data(entity, REGISTER))
            value = protobuf.decode(protobuf.data(cell, 3))
            if 5 in value:  # a struct: its first member
                value = protobuf.messages(protobuf.decode(protobuf.data(value, 5)), 1)[0]
            return int.from_bytes(protobuf.data(value, 1), "big")
        raise UnreadableError(f"{self._name} doesn't tell what the register {name} holds")

    def close(self) -> None:
        self._end_stream()
        self._channel.close()
