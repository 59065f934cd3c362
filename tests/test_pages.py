"""Code and links in the pages for readers are well-formed, and pages stay short. test_readme.py runs their programs."""

import ast
import json
import re
import subprocess
import tomllib

import pytest
import yaml

from support.pages import DOCS, PAGES, README, ROOT, blocks, page


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
    for path in PAGES:
        fences = re.findall("^ *```", path.read_text(), re.MULTILINE)
        assert len(fences) == 2 * len(blocks(path)), path


@pytest.mark.parametrize("block", [block for block in blocks() if block.language in CHECKS], ids=str)
def test_code_is_well_formed(block):
    CHECKS[block.language](block.text)


def test_the_loop_of_elastic_sessions_is_that_of_the_example():
    (printed,) = (block.text for block in blocks(page("elastic.md")) if "def train" in block.text)
    loops = []
    for text in (printed, (ROOT / "examples" / "train_elastic.py").read_text()):
        (loop,) = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == "train")
        loops.append(ast.get_source_segment(text, loop))
    assert loops[0] == loops[1]


def test_sudo_is_told_which_python():
    """Its PATH is another one than that of an activated environment."""
    started = [(str(path), *re.findall(r"sudo (?:-\S+ )*(\S+)", path.read_text())) for path in PAGES]
    commands = {command for _, *commands in started for command in commands}
    assert '"$(which' in commands
    assert commands <= {'"$(which', "apt-get"}, started


def anchors(text):
    """Returns the anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", re.sub("^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    shown = (re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in shown} | set(
        re.findall('id="(.*?)"', text)
    )


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if "://" not in link:
            name, _, anchor = link.partition("#")
            target = path.parent / name if name else path
            assert target.exists(), link
            assert not anchor or anchor in anchors(target.read_text()), link


def test_the_code_names_pages_that_there_are():
    folders = ("benchmarks", "examples", "jax_passing", "p4", "tests", "tools", "xla_ffi")
    files = [path for folder in folders for path in ROOT.glob(f"{folder}/**/*") if path.is_file()]
    texts = {
        path: path.read_bytes().decode(errors="ignore") for path in files if path.suffix not in (".so", ".pyc", ".o")
    }
    mentions = [(path, name) for path, text in texts.items() for name in re.findall(r"\bdocs/[\w/]+\.md\b", text)]
    assert len(mentions) > 20
    assert [(path, name) for path, name in mentions if not (ROOT / name).exists()] == []


def test_pages_name_files_that_there_are():
    folders = "benchmarks|examples|jax_passing|p4|tests|tools|xla_ffi"
    named = [
        (path, name)
        for path in PAGES
        for name in re.findall(
            rf"(?<![\w/-])(?:{folders})/[\w/]+\.(?:py|sh|cc|h|p4|md|toml|lua|pml)\b", path.read_text()
        )
    ]
    assert len(named) > 40
    assert [(path, name) for path, name in named if not (ROOT / name).exists()] == []


def test_pages_are_few_and_the_first_ones_short():
    assert len(DOCS) <= 31
    for path, limit in ((README, 115), (page("architecture.md"), 80)):
        assert len(path.read_text().splitlines()) <= limit, path


def test_a_page_begins_with_what_its_reader_gets():
    for path in DOCS:
        heading, blank, first, *_ = path.read_text().splitlines()
        assert heading.startswith("# "), path
        assert not blank, path
        assert re.match(r"[A-Z*]", first), path


def test_the_glossary_is_short():
    words = re.findall(r"^\| (?!word )(.*?) \|", page("glossary.md").read_text(), re.MULTILINE)
    assert 0 < len(words) <= 40
