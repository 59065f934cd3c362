"""The numbers by which P4Runtime speaks of the program: those of one build are those of the next."""

import shutil

import pytest

from jax_passing.switch.data_planes.p4 import P4DataPlane
from jax_passing.switch.data_planes.tofino import TofinoDataPlane
from support.p4 import tna_model, v1model_model
from support.p4.parts import Control, Counter, Procedure, Register, Table

pytestmark = pytest.mark.skipif(shutil.which("cpp") is None, reason="no cpp, the C preprocessor")

KINDS = {Table: "table", Procedure: "action", Register: "register", Counter: "counter"}
V1MODEL = {
    "table": "own_address forward job worker parent_job parent receiver",
    "action": "set_own_mac to_port flood set_job set_worker set_own_job set_parent to_worker",
    "register": "owner sequence bitmap_low bitmap_high answered ip mac port",
    "counter": "verdicts",
}
# Parts that both programs have bear one number; a part that one lacks is left out of its list. The compiler for Tofino
# numbers registers and counters itself, whatever the program says.
TNA = {
    "table": "own_address forward - - - parent receiver question admission",
    "action": "set_ours to_port flood - - - sum_to_parent to_worker answer_arp accept answer from_parent refuse",
}


def test_the_control_plane_knows_programs_of_its_version():
    v1model = v1model_model.V1Model(64).parts
    assert f"PassingIngress.aggregate.{P4DataPlane.newest_register}" in v1model
    control, register = TofinoDataPlane.newest_register.split(".")
    assert register in tna_model.parsed(1).controls["PassingIngress"]().members[control].members


def members(control):
    """(kind, name, number or None, the control that it stands in), in all controls within."""
    for name, member in control.members.items():
        if isinstance(member, Control):
            yield from members(member)
        elif type(member) in KINDS:
            yield KINDS[type(member)], name, control.ids.get(name), control


@pytest.mark.parametrize(
    ("parsed", "build", "expected"),
    [(v1model_model.parsed, 256, V1MODEL), (tna_model.parsed, 1, TNA), (tna_model.parsed, 2, TNA)],
    ids=["v1model", "tofino", "tofino2"],
)
def test_what_the_control_plane_names_has_its_number_for_good(parsed, build, expected):
    controls = parsed(build).controls
    found = [row for name in ("PassingIngress", "PassingEgress") for row in members(controls[name]())]
    numbers = {(kind, number): name for kind, name, number, _ in found if number is not None}
    assert numbers == {
        (kind, number): name
        for kind, names in expected.items()
        for number, name in enumerate(names.split(), 1)
        if name != "-"
    }
    assert len(numbers) == sum(number is not None for _, _, number, _ in found), "a number stands twice"
    for kind, name, number, control in found:
        if kind == "table" and not control.members[name].entries:  # the control plane fills it
            assert number is not None, name
            for action in control.members[name].actions:
                assert action in ("NoAction", "drop_it") or action in control.ids, action
