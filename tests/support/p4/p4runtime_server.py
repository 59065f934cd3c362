"""Serves P4Runtime in this process, and keeps what it is told, as the API's specification says."""

from concurrent.futures import ThreadPoolExecutor

import grpc

from jax_passing.protocol.verdicts import VERDICTS
from jax_passing.switch.data_planes.pipelines.protobuf import data, decode, encode, messages, number

TABLES = {
    "Ingress.own_address.own_address": {"ip": 32},
    "Ingress.forward.forward": {"mac": 48},
    "Ingress.job_check.job": {"job": 16},
    "Ingress.job_check.worker": {"job": 16, "worker": 16},
    "Egress.replication.receiver": {"job": 16, "worker": 16},
    "Ingress.admission.rows": {"job": 16, "slot": 16, "ip": 32},  # ternary
}
ACTIONS = {
    "Ingress.own_address.set_own_mac": {"mac": 48},
    "Ingress.forward.to_port": {"port": 9},
    "Ingress.job_check.set_job": {
        "epoch": 16,
        "owner": 32,
        "slot_first": 16,
        "slot_count": 16,
        "workers": 64,
        "group": 16,
        "reach": 32,
    },
    "Ingress.job_check.set_worker": {"worker_bit": 64, "ip": 32, "udp_port": 16},
    "Egress.replication.to_worker": {"mac": 48, "ip": 32, "udp_port": 16},
}
REGISTERS = (
    "slot_check.owner",
    "slot_check.sequence",
    "slot_check.bitmap_low",
    "slot_check.bitmap_high",
    "neighbours.ip",
)


def things(names, first):
    """Tables or actions with their parts."""
    for index, (name, parts) in enumerate(names.items()):
        listed = [(2, encode((1, at), (2, part), (4, bits))) for at, (part, bits) in enumerate(parts.items(), start=1)]
        yield encode((1, encode((1, first + index), (2, name))), *listed)


def bitstring(bits, kind=1):
    """A type: bit<>, or int<> with kind 2."""
    return encode((1, encode((kind, encode((1, bits))))))


# The lanes of a slot version: how v1model and a Tofino cut 64 into registers.
WIDE = [("bare", bitstring(1)), *[(f"group{at}.held", bitstring(1024)) for at in range(2)]]
PAIRS = [(f"pair_{at:02o}.pair", encode((4, encode((1, "pair_t"))))) for at in range(32)]


def p4info(lanes=WIDE):
    # The fields on what a register holds and a counter counts stand where tables have their keys.
    width = bitstring(32)
    names = [encode((1, 300 + at), (2, f"Ingress.{name}")) for at, name in enumerate(REGISTERS)]
    cells = [(11, encode((1, name), (2, width), (3, 64))) for name in names]
    for at, (name, held) in enumerate(lanes):
        cells.append((11, encode((1, encode((1, 400 + at), (2, f"Ingress.lanes.{name}"))), (2, held), (3, 64))))
    members = [(1, encode((1, half), (2, bitstring(32, kind=2)))) for half in ("low", "high")]
    structs = (200, encode((1, encode((1, "pair_t"), (2, encode(*members))))))
    verdicts = (5, encode((1, encode((1, 200), (2, "Ingress.verdicts"))), (2, encode((1, 2))), (3, len(VERDICTS))))
    tables = [(2, table) for table in things(TABLES, 1)]
    return encode(*tables, *((3, action) for action in things(ACTIONS, 100)), verdicts, *cells, structs)


class Server:
    """Entries are kept as {(table, match in bytes): action in bytes}."""

    def __init__(self):
        self.config = None
        self.entries, self.groups, self.registers = {}, {}, {}
        self.priorities = []  # of ternary rows written
        self.elected = b""
        self.refuses = self.is_full = self.is_mute = False
        handlers = {
            "StreamChannel": grpc.stream_stream_rpc_method_handler(self.stream),
            "SetForwardingPipelineConfig": grpc.unary_unary_rpc_method_handler(self.configure),
            "Write": grpc.unary_unary_rpc_method_handler(self.write),
            "Read": grpc.unary_stream_rpc_method_handler(self.read),
        }
        self.server = grpc.server(ThreadPoolExecutor(8))
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("p4.v1.P4Runtime", handlers),))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def stream(self, requests, context):
        for request in requests:
            arbitration = decode(data(decode(request), 1))
            assert number(arbitration, 1) == 3
            self.elected = data(arbitration, 3)
            code = 6 if self.refuses else 0
            yield encode((1, encode((1, 3), (3, self.elected), (4, encode((1, code), (2, "another one"))))))

    def configure(self, request, context):
        message = decode(request)
        assert (number(message, 1), data(message, 3), number(message, 4)) == (3, self.elected, 3)
        self.config = decode(data(message, 5))
        self.entries = {}  # groups stay, as in bmv2
        return b""

    def refuse(self, context, code, text):
        """One part of a write: the call's own status says nothing."""
        error = encode((1, code), (2, text), (3, "here"))
        status = encode((1, 2), (3, encode((1, "type.googleapis.com/p4.v1.Error"), (2, error))))
        context.set_trailing_metadata((("grpc-status-details-bin", status),))
        context.abort(grpc.StatusCode.UNKNOWN, "")

    def write(self, request, context):
        message = decode(request)
        if data(message, 3) != self.elected:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "not the controller")
        (update,) = messages(message, 4)
        (entity,) = messages(update, 2)
        inserts = {1: True, 2: True, 3: False}[number(update, 1)]
        (kind,) = entity
        if kind == 2:
            entry = decode(data(entity, 2))
            self.priorities += entry.get(4, [])
            held, key, value = self.entries, (number(entry, 1), b"".join(entry[2])), data(entry, 3)
        else:
            group = decode(data(decode(data(entity, 9)), 1))
            copies = [(number(copy, 1), number(copy, 2)) for copy in messages(group, 2)]
            held, key, value = self.groups, number(group, 1), copies
        if number(update, 1) == 1 and key in held:
            self.refuse(context, 6, "it is there already")
        if number(update, 1) != 1 and key not in held:
            self.refuse(context, 5, "it isn't there")
        if self.is_full and kind == 9:
            self.refuse(context, 8, "no room")
        if inserts:
            held[key] = value
        else:
            del held[key]
        if self.is_mute:
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "too late")
        return b""

    def read(self, request, context):
        (entity,) = messages(decode(request), 2)
        (kind,) = entity
        wanted = decode(data(entity, kind))
        if kind == 2:
            for table, match in self.entries:
                if table == number(wanted, 1):
                    yield encode((1, encode((2, encode((1, table), (2, match))))))
        elif kind == 9:
            if self.config is None:
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no program")
            for group in self.groups:
                yield encode((1, encode((9, encode((1, encode((1, group))))))))
        elif kind == 7:
            cells = [
                (1, encode((7, encode((1, 200), (2, encode((1, at))), (3, encode((2, 10 * at))))))) for at in range(17)
            ]
            yield encode(*cells)
        else:
            index = number(decode(data(wanted, 2)), 1)
            held = self.registers.get((number(wanted, 1), index))
            if held is None:
                context.abort(grpc.StatusCode.UNIMPLEMENTED, "no registers here")
            yield encode((1, encode((11, encode((1, number(wanted, 1)), (3, encode((1, held.to_bytes(8, "big")))))))))

    def stop(self):
        self.server.stop(None).wait(5)
