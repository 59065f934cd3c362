"""Whether code and links in the pages for readers are well-formed; end_to_end/launch/test_readme.py runs programs."""

import ast
import json
import re
import subprocess
import tomllib

import pytest
import yaml
from support.docs.pages import PAGES, ROOT, blocks


def check_shell(text):
    ended = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


def check_yaml(text):
    assert all(isinstance(document, dict | list) for document in yaml.safe_load_all(text))


CHECKS = {
    "bash": check_shell,
    "json": json.loads,
    "python": ast.parse,
    "toml": tomllib.loads,
    "yaml": check_yaml,
}


def test_every_fence_is_found():
    """A block that the pattern for blocks doesn't find would rot unseen."""
    for page in PAGES:
        fences = re.findall("^ *```", page.read_text(), re.MULTILINE)
        assert len(fences) == 2 * len(blocks(page)), page


@pytest.mark.parametrize("block", [block for block in blocks() if block.language in CHECKS], ids=str)
def test_code_is_well_formed(block):
    CHECKS[block.language](block.text)


def test_the_loop_of_elastic_sessions_is_that_of_the_example():
    (printed,) = (block.text for block in blocks(ROOT / "docs" / "elastic.md") if block.language == "python")
    loops = []
    for text in (printed, (ROOT / "examples" / "train_elastic.py").read_text()):
        (loop,) = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == "train")
        loops.append(ast.get_source_segment(text, loop))
    assert loops[0] == loops[1]


def test_sudo_is_told_which_python():
    """Its PATH is another one than that of an activated environment."""
    started = [(str(page), *re.findall(r"sudo (?:-\S+ )*(\S+)", page.read_text())) for page in PAGES]
    commands = {command for _, *commands in started for command in commands}
    assert '"$(which' in commands
    assert commands <= {'"$(which', "apt-get"}, started


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    for link in links:
        path = link.partition("#")[0]
        if path and "://" not in link:
            assert (page.parent / path).exists(), link
