"""Finds the pages for readers, and the fenced blocks of code in them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = sorted(ROOT.glob("docs/**/*.md"))
PAGES = sorted([*ROOT.glob("*.md"), *DOCS, *ROOT.glob("p4/**/*.md"), *ROOT.glob("benchmarks/*/*.md")])

_FENCE = re.compile(r"^( *)```(\S*).*?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def page(name: str) -> Path:
    """Returns the page of docs with this file name, in whichever folder it is."""
    (found,) = (path for path in DOCS if path.name == name)
    return found


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    """The text begins at this line of the page."""
    language: str
    text: str

    @property
    def is_program(self) -> bool:
        """A block that imports what it uses runs as it stands. Others are fragments, which need what stands around."""
        return self.language == "python" and re.search(r"^(import|from) ", self.text, re.MULTILINE) is not None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(*pages: Path) -> list[Block]:
    """Returns all blocks of these pages (by default: of all pages), in their order."""
    found = []
    for path in pages or PAGES:
        text = path.read_text()
        for match in _FENCE.finditer(text):
            line = text.count("\n", 0, match.start(3)) + 1
            found.append(Block(path, line, match[2], re.sub(f"^{match[1]}", "", match[3], flags=re.MULTILINE)))
    return found
