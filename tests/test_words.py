"""Docstrings and headers begin with a sentence, and no file is too long: docs/style.md says why."""

import ast
import re
import subprocess

import pytest

from support.pages import ROOT

FRAGMENT = re.compile(r"(Of|What|Whether|Those|Which|Who|How (long|many|often|far))\b|Attributes:")
NOBODY = re.compile(r"(It|They|Lasts)\b")  # a class is what its docstring is of, and must be named
LINES_MAX = 350
HAS_CODE = (".py", ".cc", ".h", ".c", ".p4", ".sh", ".bzl", ".txt", ".md", ".cmake", "BUILD")


def sources(*endings: str) -> dict[str, str]:
    listed = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    return {name: (ROOT / name).read_text() for name in listed if name.endswith(endings) and (ROOT / name).is_file()}


def fragments(name: str, text: str) -> list[str]:
    """Returns how docstrings of Python, or comments on declarations of a C++ header, begin where it is no sentence."""
    if not name.endswith(".py"):
        comments = re.findall(r"^(?!\s*//).*\n\s*// (.*)", "\n" + text, re.MULTILINE)
        return [each for each in comments if FRAGMENT.match(each)]
    described = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, described)]
    found = [(node, docstring) for node in nodes if (docstring := ast.get_docstring(node))]
    return [
        docstring.splitlines()[0]
        for node, docstring in found
        if FRAGMENT.match(docstring) or (isinstance(node, ast.ClassDef) and NOBODY.match(docstring))
    ]


def test_docstrings_are_sentences() -> None:
    texts = sources(".py", ".h").items()
    assert {f"{name}: {each}" for name, text in texts for each in fragments(name, text)} == set()


def test_files_are_short() -> None:
    assert {name for name, text in sources(*HAS_CODE).items() if text.count("\n") > LINES_MAX} == set()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", '"""Of it."""'),
        ("a.py", 'class A:\n    """It lasts."""'),
        ("a.py", 'class A:\n    """\n    Attributes:\n      b: c.\n    """'),
        ("a.h", "#pragma once\n// Of it.\nint a;"),
    ],
)
def test_fragments_are_found(name: str, text: str) -> None:
    assert len(fragments(name, text)) == 1
