"""Keeps the tables of a device in memory, which a test may lose at any time."""

from jax_passing.protocol.verdicts import VERDICTS
from jax_passing.switch.data_planes.pipeline import DeviceError


class DeviceInMemory:
    lanes, register_cells = 64, 64

    def __init__(self):
        self.refuses_after = None  # calls
        self.taken = ""  # by whom
        self.refused = {}  # once: what is raised for the next row of a table, or for the group
        self.restart()

    def restart(self):
        self.tables, self.groups, self.registers, self.verdicts = {}, {}, {}, [0] * len(VERDICTS)

    def _touch(self):
        if self.refuses_after is not None:
            if self.refuses_after == 0:
                raise DeviceError("it is off")
            self.refuses_after -= 1

    def attach(self):
        self.check_control()
        self._touch()
        self.tables, self.groups = {}, {}

    def check_control(self):
        if self.taken:
            raise DeviceError(self.taken)

    def insert(self, entry):
        self._touch()
        if error := self.refused.pop(entry.table, None):
            raise error
        rows = self.tables.setdefault(entry.table, {})
        key = tuple(entry.match.values())
        assert key not in rows, entry
        rows[key] = (entry.action, dict(entry.parameters))

    def delete(self, entry):
        self._touch()
        del self.tables[entry.table][tuple(entry.match.values())]

    def entry_count(self, table):
        self._touch()
        return len(self.tables.get(table, {}))

    def insert_group(self, group, replicas):
        self._touch()
        assert group not in self.groups
        if error := self.refused.pop("group", None):
            raise error
        self.groups[group] = list(replicas)

    def delete_group(self, group):
        self._touch()
        self.groups.pop(group, None)

    def counter(self, name):
        assert name == "verdicts"
        self._touch()
        return self.verdicts

    def register(self, name, index):
        self._touch()
        return self.registers.get((name, index), 0)

    def close(self):
        pass
