"""This reaches bmv2's simple_switch through its Thrift server."""

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from jax_passing.config import address_text
from jax_passing.switch.data_planes.pipeline import DeviceError, Entry, only_one
from jax_passing.switch.data_planes.pipelines.thrift import ThriftClient, ThriftError

CONTEXT = 0
EXACT = 0  # BmMatchParamType


def _number(value: int, bits: int) -> bytes:
    return value.to_bytes((bits + 7) // 8, "big")


def _the(kind: str, rows: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    return only_one(kind, rows, name, lambda row: row["name"])


class Bmv2:
    """Connects when it is made. Raises DeviceError, as all methods do."""

    def __init__(self, address: tuple[str, int]):
        self._name = address_text(*address)
        self._client = ThriftClient(address)
        self._program: dict[str, Any] = {}
        self._tables: list[dict[str, Any]] = []
        self._handles: dict[tuple[str, tuple[int, ...]], int] = {}
        self._groups: dict[int, tuple[int, list[int]]] = {}  # handle of the group, and of its nodes
        # The server takes orders from everybody. So we leave a row of our own, of a job that can't be.
        nowhere = {"mac": 0, "ip": 0, "udp_port": 0}
        self._mark = Entry("receiver", {"job": 0, "worker": secrets.randbelow(1 << 16)}, "to_worker", nowhere)
        self._attached = False
        self._read_program()

    def _call(self, service: str, method: str, *arguments: Any) -> Any:
        try:
            return self._client.call(service, method, *arguments)
        except OSError as error:
            raise self._no_answer(error) from error
        except ThriftError as error:
            raise DeviceError(f"simple_switch at {self._name}: {error} {arguments[1:3]}") from error

    def _no_answer(self, error: OSError) -> DeviceError:
        return DeviceError(f"no answer from simple_switch's Thrift server at {self._name}: {error}")

    def _standard(self, method: str, *arguments: Any) -> Any:
        return self._call("standard", method, *arguments)

    def _replication(self, method: str, *arguments: Any) -> Any:
        return self._call("simple_pre_lag", method, CONTEXT, *arguments)

    def _read_program(self) -> None:
        """Reads the program of the device itself, so that names and widths are those of what runs there."""
        try:
            self._program = json.loads(self._standard("bm_get_config"))
            self._tables = [table for pipeline in self._program["pipelines"] for table in pipeline["tables"]]
        except (ValueError, KeyError) as error:
            raise DeviceError(f"simple_switch at {self._name} runs no program") from error

    @property
    def lanes(self) -> int:
        return sum(self._widths("lanes").values()) // 32

    @property
    def register_cells(self) -> int:
        return int(_the("register", self._program["register_arrays"], "sequence")["size"])

    def _widths(self, header: str) -> dict[str, int]:
        """Returns how many bits its fields have."""
        type_name = next((row["header_type"] for row in self._program["headers"] if row["name"] == header), None)
        for row in self._program["header_types"]:
            if row["name"] == type_name:
                return {name: bits for name, bits, *_ in row["fields"]}
        raise DeviceError(f"the device's program has no header {header}: is it the one in p4/?")

    def attach(self) -> None:
        self._read_program()
        if self._attached:
            self.check_control()
        self._handles.clear()
        self._groups.clear()
        for name in self._filled_tables():
            self._standard("bm_mt_clear_entries", CONTEXT, name, False)
        self.insert(self._mark)
        self._attached = True
        held = json.loads(self._replication("bm_mc_get_entries"))
        for node in held["l1_handles"]:
            self._replication("bm_mc_node_destroy", node["handle"])
        for group in held["mgrps"]:
            self._replication("bm_mc_mgrp_destroy", group["id"])

    def _filled_tables(self) -> list[str]:
        """Returns all tables but those that the program fills. The mark's is the last one, which is left if clearing
        fails is ours."""
        names = [table["name"] for table in self._tables if table["key"] and "entries" not in table]
        return sorted(names, key=lambda name: name.endswith("." + self._mark.table))

    def check_control(self) -> None:
        if not self._has_mark() and any(self._count(name) for name in self._filled_tables()):
            raise DeviceError(
                f"simple_switch at {self._name} has another control plane, which came later: stop that one, then start "
                "this one again, or leave the device to it"
            )

    def _has_mark(self) -> bool:
        table = _the("table", self._tables, self._mark.table)
        key = self._match(table, self._mark)
        try:
            self._client.call("standard", "bm_mt_get_entry_from_key", CONTEXT, table["name"], key, {})
        except ThriftError:
            return False
        except OSError as error:
            raise self._no_answer(error) from error
        return True

    def insert(self, entry: Entry) -> None:
        table = _the("table", self._tables, entry.table)
        key = self._match(table, entry)
        names = set(table["actions"])
        action = _the("action", [row for row in self._program["actions"] if row["name"] in names], entry.action)
        data = [_number(entry.parameters[row["name"]], row["bitwidth"]) for row in action["runtime_data"]]
        assert len(data) == len(entry.parameters), entry
        handle = self._standard("bm_mt_add_entry", CONTEXT, table["name"], key, action["name"], data, {})
        self._handles[self._id(entry)] = handle

    def _match(self, table: Mapping[str, Any], entry: Entry) -> list[Mapping[int, Any]]:
        assert len(table["key"]) == len(entry.match), entry
        parts = []
        for key in table["key"]:
            header, field = key["target"]
            parts.append(_number(entry.match[key["name"]], self._widths(header)[field]))
        return [{1: EXACT, 2: {1: part}} for part in parts]

    @staticmethod
    def _id(entry: Entry) -> tuple[str, tuple[int, ...]]:
        return entry.table, tuple(value for _, value in sorted(entry.match.items()))

    def delete(self, entry: Entry) -> None:
        table = _the("table", self._tables, entry.table)
        self._standard("bm_mt_delete_entry", CONTEXT, table["name"], self._handles.pop(self._id(entry)))

    def entry_count(self, table: str) -> int:
        ours = 1 if table == self._mark.table else 0
        return self._count(_the("table", self._tables, table)["name"]) - ours

    def _count(self, name: str) -> int:
        return int(self._standard("bm_mt_get_num_entries", CONTEXT, name))

    def insert_group(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        handle = self._replication("bm_mc_mgrp_create", group)
        nodes: list[int] = []
        self._groups[group] = handle, nodes
        for port, number in replicas:
            port_map = "1" + "0" * port  # the lowest port stands last
            nodes.append(self._replication("bm_mc_node_create", number, port_map, ""))
            self._replication("bm_mc_node_associate", handle, nodes[-1])

    def delete_group(self, group: int) -> None:
        if group not in self._groups:
            return
        handle, nodes = self._groups.pop(group)
        for node in nodes:  # first: a node that still knows a group which is gone brings the server down
            self._replication("bm_mc_node_destroy", node)
        self._replication("bm_mc_mgrp_destroy", handle)

    def counter(self, name: str) -> list[int]:
        array = _the("counter", self._program["counter_arrays"], name)
        values = [self._standard("bm_counter_read", CONTEXT, array["name"], index) for index in range(array["size"])]
        return [value[2] for value in values]

    def register(self, name: str, index: int) -> int:
        array = _the("register", self._program["register_arrays"], name)
        value = int(self._standard("bm_register_read", CONTEXT, array["name"], index))
        return value & ((1 << array["bitwidth"]) - 1)

    def close(self) -> None:
        self._client.close()
