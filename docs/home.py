"""The site's first page shows the README, before the list of all pages: a hook of mkdocs.yml."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def on_page_markdown(markdown, page, **_):
    """Returns a page's text for the site."""
    if page.file.src_uri != "index.md":
        return markdown
    links = re.compile(r"\[([^]]*)\]\((?!https?:)(docs/)?(.*?)\)")
    shown = links.sub(lambda link: f"[{link[1]}]({link[3]})" if link[2] else link[1], README.read_text())
    return f"{shown}\n#{markdown}"
