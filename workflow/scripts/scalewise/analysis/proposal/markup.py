"""A text of headings, paragraphs, tables, figures and code, as Markdown and as LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from scalewise.analysis.proposal.table import Table

GAP = "TO WRITE"
"""Begins every gap that only the user can fill."""

_SPECIAL = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
}
_PLAIN = {"–": "--", "—": "--", "×": "x", "’": "'", "‘": "'", "“": "``", "”": "''", "…": "...", "\u00a0": " "}


@dataclass(frozen=True)
class Heading:
    """A heading of the text."""

    text: str


@dataclass(frozen=True)
class Paragraph:
    """Sentences; of a gap, what the user has to write."""

    text: str
    is_gap: bool = False


@dataclass(frozen=True)
class Grid:
    """A small table of text: headings first."""

    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    """A figure of the experiment's folder ``figures``, after a sentence that refers to it.

    Args:
        name: Name of its file.
        subject: The contents, for a sentence.
    """

    name: str
    subject: str

    @property
    def caption(self) -> str:
        """The text below it."""
        subject = f"{self.subject[0].upper()}{self.subject[1:]}"
        return f"{subject}. Bars are 95 % intervals; the dotted line is ideal scaling."


Block = Heading | Paragraph | Grid | Table | Picture


def to_markdown(title: str, blocks: Iterable[Block]) -> str:
    """Write a text as Markdown."""
    parts, pictures = [f"# {markdown_text(title)}"], 0
    for block in blocks:
        pictures += isinstance(block, Picture)
        parts.append(_markdown(block, pictures))
    return "\n\n".join(parts) + "\n"


def to_latex(title: str, blocks: Iterable[Block]) -> str:
    """Write a text as a document of LaTeX."""
    lines = [
        "% Compile it in this folder, pdflatex proposal.tex, or paste its sections: they need these packages",
        r"\documentclass[a4paper]{article}",
        r"\usepackage[T1]{fontenc}",
        r"\usepackage[margin=25mm]{geometry}",
        r"\usepackage{array}",
        r"\usepackage{booktabs}",
        r"\usepackage{graphicx}",
        r"\setlength{\parindent}{0pt}",
        r"\setlength{\parskip}{6pt}",
        "% room for addresses, which have no hyphens",
        r"\setlength{\emergencystretch}{3em}",
        r"\begin{document}",
        rf"\section*{{{latex_text(title)}}}",
    ]
    return "\n".join([*lines, *map(_latex, blocks), r"\end{document}", ""])


def latex_text(text: str) -> str:
    """Return a text in which LaTeX reads no command."""
    plain = "".join(_PLAIN.get(character, character) for character in text.replace("`", ""))
    escaped = re.sub(r"[&%$#_{}~^\\]", lambda found: _SPECIAL[found[0]], plain)
    # an option's two hyphens are no dash
    return re.sub(r"(?<![\w-])--(?=\w)", "-{}-", escaped)


def markdown_text(text: str) -> str:
    """Return a text in which Markdown reads no table and no HTML."""
    return text.replace("<", "&lt;").replace("|", "\\|")


def _markdown(block: Block, number: int) -> str:
    """Write a block.

    Args:
        block: The block.
        number: Number of the last figure.
    """
    if isinstance(block, Heading):
        return f"## {markdown_text(block.text)}"
    if isinstance(block, Paragraph):
        return f"**{GAP}: {block.text}**" if block.is_gap else markdown_text(block.text)
    if isinstance(block, Grid):
        return "\n".join(_markdown_rows(block.rows[0], block.rows[1:]))
    if isinstance(block, Picture):
        shows = f"Figure {number} shows the {block.subject}."
        picture = f"![{block.caption}](../figures/{block.name}.svg)"
        return f"{shows}\n\n{picture}\n\n*Figure {number}: {block.caption}*"
    rows = []
    for index, row in enumerate(block.rows):
        strong = "**" if index == block.recommended else ""
        rows.append([f"{strong}{c.text}{strong}" + (f" [{c.bounds}]" if c.bounds else "") for c in row])
    marked = "" if block.recommended is None else " The recommended row is in bold."
    return "\n".join([f"*{block.caption}.{marked}*", "", *_markdown_rows(block.columns, rows)])


def _markdown_rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    yield line(head)
    yield f"|{'---:|' * len(head)}"
    yield from map(line, rows)


def _latex(block: Block) -> str:
    if isinstance(block, Heading):
        return rf"\subsection*{{{latex_text(block.text)}}}"
    if isinstance(block, Paragraph):
        text = latex_text(block.text)
        return (rf"\textbf{{{GAP}: {text}}}" if block.is_gap else text) + "\n"
    if isinstance(block, Grid):
        rows = [_latex_row(row) for row in block.rows[1:]]
        return "\n".join(["{\\centering\\small", *_tabular(block.rows[0], rows, LINES), r"\par}", ""])
    if isinstance(block, Picture):
        caption = latex_text(block.caption)
        return "\n".join(
            [
                rf"Figure~\ref{{fig:{block.name}}} shows the {latex_text(block.subject)}.",
                # no float: it stays below its heading
                r"\begin{center}",
                r"  \refstepcounter{figure}",
                rf"  \label{{fig:{block.name}}}",
                # no page ends between a figure and its caption
                rf"  \includegraphics{{../figures/{block.name}.pdf}}\\*[6pt]",
                rf"  Figure~\thefigure: {caption}",
                r"\end{center}",
            ]
        )
    return _latex_table(block)


def _latex_table(table: Table) -> str:
    rows = []
    for index, row in enumerate(table.rows):
        bold = r"\textbf{%s}" if index == table.recommended else "%s"
        rows.append(_latex_row([cell.text for cell in row], bold))
        if any(cell.bounds for cell in row):
            # below the figures, so that the table fits the width of a page
            rows.append(_latex_row([cell.bounds for cell in row], r"{\scriptsize %s}") + "[2pt]")
    marked = "" if table.recommended is None else " The recommended row is in bold."
    label = re.sub("[^a-z0-9]+", "-", table.label.lower()).strip("-")
    return "\n".join(
        [
            r"\begin{table}[!htb]",
            r"  \centering",
            rf"  \caption{{{latex_text(f'{table.caption}.{marked}')}}}",
            rf"  \label{{tab:{label}}}",
            r"  \small",
            r"  \setlength{\tabcolsep}{4pt}",
            *_tabular(table.columns, rows),
            r"\end{table}",
        ]
    )


LINES = r">{\raggedright\arraybackslash}p{36mm}"
"""Column of texts that may take several lines, such as titles."""


def _tabular(head: Sequence[str], rows: Sequence[str], first: str = "r") -> list[str]:
    return [
        rf"  \begin{{tabular}}{{{first}{'r' * (len(head) - 1)}}}",
        r"    \toprule",
        *(f"    {_latex_row(line)}" for line in _headings(head)),
        r"    \midrule",
        *(f"    {row}" for row in rows),
        r"    \bottomrule",
        r"  \end{tabular}",
    ]


def _headings(head: Sequence[str]) -> list[list[str]]:
    """Return headings in two lines, so that the table fits the width of a page."""
    pairs = [re.fullmatch(r"(.*?)(?:,? (?=\()|, |$)(.*)", text) for text in head]
    lines = [[pair[place] if pair else "" for pair in pairs] for place in (1, 2)]
    return lines if any(lines[1]) else lines[:1]


def _latex_row(texts: Sequence[str], form: str = "%s") -> str:
    cells = map(latex_text, texts)
    return " & ".join(form % cell if cell else "" for cell in cells) + r" \\"
