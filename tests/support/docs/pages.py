"""The pages for readers, and the fenced blocks of code in them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("p4/**/*.md")])

_FENCE = re.compile(r"^( *)```(\S*).*?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    """Of the page, at which its text begins."""
    language: str
    text: str

    @property
    def is_program(self) -> bool:
        """A block that imports what it uses runs as it stands. Others are fragments, which need what stands around."""
        return self.language == "python" and re.search(r"^(import|from) ", self.text, re.MULTILINE) is not None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(*pages: Path) -> list[Block]:
    """All of these pages (by default: of all pages), in their order."""
    found = []
    for page in pages or PAGES:
        text = page.read_text()
        for match in _FENCE.finditer(text):
            line = text.count("\n", 0, match.start(3)) + 1
            found.append(Block(page, line, match[2], re.sub(f"^{match[1]}", "", match[3], flags=re.MULTILINE)))
    return found
