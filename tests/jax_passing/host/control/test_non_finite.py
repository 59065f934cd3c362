"""A rank that brought NaN into a sum is named with the leaf."""

from types import SimpleNamespace

import pytest

from jax_passing.host.control.non_finite import of_non_finite


@pytest.mark.parametrize(
    ("identity", "leaf", "text"),
    [
        ('{"leaves": [["", "float32[3]"]]}', 0, "NaN into the array of float32[3], element 2, of"),
        ('{"leaves": [["[\'b\']", "float32[]"], ["[\'w\']", "float32[3]"]]}', 1, "leaf ['w'], float32[3], element 2"),
        ("", 4, "NaN into leaf 4, element 2, of the sum here (execution 5, step 6), and"),
    ],
)
def test_the_message(identity, leaf, text):
    first = SimpleNamespace(site_name="here", identity=identity, execution=5, step=6, leaf=leaf, element=2, what="NaN")
    failure = of_non_finite(first, 1, "node")
    assert (failure.kind, failure.ranks) == ("NonFiniteError", ())
    assert failure.message.startswith("Rank 1 (node) brought NaN into ")
    assert text in failure.message
