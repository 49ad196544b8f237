"""A report as Markdown and as one HTML page with everything in it."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.report.tables import Table

CSS = Path(__file__).with_name("page.css")


@dataclass(frozen=True)
class Picture:
    """A figure under a file name without its ending."""

    name: str
    caption: str
    figure: Figure


@dataclass
class Section:
    """A heading with tables and pictures."""

    title: str
    tables: list[Table] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)


def save_pictures(pictures: Sequence[Picture], folder: Path) -> None:
    """Every picture as PNG and as SVG. Without dates and random names in them: the same results give the same files."""
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "avalanche-rewc"}):
        for picture in pictures:
            picture.figure.savefig(folder / f"{picture.name}.png", dpi=150, metadata={"Software": None})
            picture.figure.savefig(folder / f"{picture.name}.svg", metadata={"Date": None})


def markdown_table(table: Table) -> str:
    """A table in GitHub's Markdown."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (table.header, *table.rows)]
    alignment = ["---"] + ["---:"] * (len(table.header) - 1)
    lines = ["| " + " | ".join(row) + " |" for row in (cells[0], alignment, *cells[1:])]
    return "\n".join(lines)


def markdown_with_note(table: Table) -> str:
    """A table in GitHub's Markdown, its note below."""
    return f"{markdown_table(table)}\n\n{table.note}"


def markdown(title: str, intro: str, sections: Sequence[Section], figures: str) -> str:
    """The report as Markdown; pictures are links into the folder `figures`."""
    parts = [f"# {title}", intro]
    for section in sections:
        parts.append(f"## {section.title}")
        for table in section.tables:
            parts += [f"**{table.title}**", markdown_table(table), table.note]
        parts += [f"![{picture.caption}]({figures}/{picture.name}.png)" for picture in section.pictures]
    return "\n\n".join(part for part in parts if part) + "\n"


def html_page(title: str, intro: str, sections: Sequence[Section], figures: Path) -> str:
    """The report as one page: style and pictures are in it, nothing is loaded from elsewhere."""
    links = "".join(f'<li><a href="#{anchor(s.title)}">{html.escape(s.title)}</a></li>' for s in sections)
    body = []
    for section in sections:
        body.append(f'<section id="{anchor(section.title)}"><h2>{html.escape(section.title)}</h2>')
        body += [_html_table(table) for table in section.tables]
        pictures = "\n".join(_html_picture(picture, figures) for picture in section.pictures)
        body.append(f'<div class="pictures">{pictures}</div></section>')
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{CSS.read_text(encoding='utf-8')}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{html.escape(title)}</h1>\n<p>{html.escape(intro)}</p>\n"
        + (f"<nav><ul>{links}</ul></nav>\n" if len(sections) > 1 else "")
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.header)
    rows = []
    for name, *cells in table.rows:
        rest = "".join(f"<td>{_bold(cell)}</td>" for cell in cells)
        rows.append(f'<tr><th scope="row">{html.escape(name)}</th>{rest}</tr>')
    return (
        f'<figure class="table"><h3>{html.escape(table.title)}</h3><div class="scroll" tabindex="0">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        f"<figcaption>{html.escape(table.note)}</figcaption></figure>"
    )


def _html_picture(picture: Picture, figures: Path) -> str:
    data = base64.b64encode((figures / f"{picture.name}.svg").read_bytes()).decode()
    caption = html.escape(picture.caption)
    image = f'<img src="data:image/svg+xml;base64,{data}" alt="{caption}">'
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"


def _bold(cell: str) -> str:
    return re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", html.escape(cell))


def anchor(title: str) -> str:
    """A title as the name of a place or a file."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
