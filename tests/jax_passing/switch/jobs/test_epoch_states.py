"""The picture of an epoch's states in docs/internals/architecture.md."""

from jax_passing.switch.jobs.epoch_states import NEXT, EpochState
from support.pages import ROOT


def drawn():
    first, last = EpochState.FORMING, EpochState.OVER
    arrows = [f"    {state.value} --> {to.value}: {event.value}" for (state, event), to in NEXT.items()]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {first.value}", *arrows, f"    {last.value} --> [*]"])


def test_the_picture_is_drawn_from_the_table():
    assert f"```mermaid\n{drawn()}\n```" in (ROOT / "docs" / "internals" / "architecture.md").read_text()


def test_every_epoch_can_end():
    reached = {EpochState.OVER}
    while more := {state for (state, _), to in NEXT.items() if to in reached} - reached:
        reached |= more
    assert reached == set(EpochState)
    assert EpochState.OVER not in {state for state, _ in NEXT}
