"""Docstrings and headers begin with a sentence, and no file is too long: docs/style.md says why."""

import ast
import re
import subprocess

import pytest

from support.docs.pages import ROOT

FRAGMENT = re.compile(r"(Of|What|Whether|Those|Which|Who|How (long|many|often|far))\b")
LINES_MAX = 350
HAS_CODE = (".py", ".cc", ".h", ".c", ".p4", ".sh", ".bzl", ".txt", ".md", ".cmake", "BUILD")

DATA = {"docs/reference/benchmarks.md"}  # may be long


def sources(*endings: str) -> dict[str, str]:
    listed = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    return {name: (ROOT / name).read_text() for name in listed if name.endswith(endings) and (ROOT / name).is_file()}


def beginnings(name: str, text: str) -> list[str]:
    """Returns how each docstring of a Python file, or each comment on a declaration of a C++ header, begins."""
    if name.endswith(".py"):
        described = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, described)]
        return [found for node in nodes if (found := ast.get_docstring(node))]
    return re.findall(r"^(?!\s*//).*\n\s*// (.*)", "\n" + text, re.MULTILINE)


def test_docstrings_are_sentences() -> None:
    assert {
        f"{name}: {each.splitlines()[0]}"
        for name, text in sources(".py", ".h").items()
        for each in beginnings(name, text)
        if FRAGMENT.match(each)
    } == set()


def test_files_are_short() -> None:
    assert {name for name, text in sources(*HAS_CODE).items() if text.count("\n") > LINES_MAX} - DATA == set()


@pytest.mark.parametrize(("name", "text"), [("a.py", '"""Of it."""'), ("a.h", "#pragma once\n// Of it.\nint a;")])
def test_fragments_are_found(name: str, text: str) -> None:
    assert [FRAGMENT.match(each)[0] for each in beginnings(name, text)] == ["Of"]
