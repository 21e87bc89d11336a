"""A page for each example, and one with all of them, out of the scripts and their figures."""

import ast
from pathlib import Path

# Modules that examples share.
SHARED = ("common", "hamiltonian")


def write(docs: Path) -> None:
    """Write ``gallery.md`` and the folder ``gallery``, which are not kept under version control."""
    folder = docs / "gallery"
    folder.mkdir(exist_ok=True)
    scripts = [p for p in sorted(docs.parent.glob("examples/*.py")) if p.stem not in SHARED]
    parts = ["# Gallery", "", "Figures are those that the scripts of `examples/` have made.", ""]
    pages: list[str] = []
    for script in scripts:
        text = ast.get_docstring(ast.parse(script.read_text())) or script.stem
        title, _, rest = text.partition("\n")
        figures = sorted(docs.glob(f"examples/{script.stem}*.png"))
        told = docs / "examples" / f"{script.stem}.md"
        links = [f"[What came out](../examples/{told.name})", ""] if told.exists() else []
        shown = [f"![{title}](../examples/{figure.name})\n" for figure in figures]
        code = ["```{literalinclude} ../../examples/" + script.name, ":language: python", "```"]
        page = [f"# {title.rstrip('.')}", "", described(rest), "", *links, *shown, *code]
        update(folder / f"{script.stem}.md", page)
        parts += [f"## [{title.rstrip('.')}](gallery/{script.stem}.md)", ""]
        parts += [f"![{title}](examples/{figure.name})\n" for figure in figures[:1]]
        pages += [f"gallery/{script.stem}"]
    told = [f"examples/{page.stem}" for page in sorted(docs.glob("examples/*.md"))]
    contents = ["```{toctree}", ":hidden:", "", *pages, *told, "```"]
    update(docs / "gallery.md", [*parts, *contents])


def described(text: str) -> str:
    """A docstring as Markdown: its indented lines are commands."""
    return text.strip("\n").replace("``", "`")


def update(path: Path, lines: list[str]) -> None:
    """Write a file if that changes it, so that only what changed is built again."""
    text = "\n".join(lines) + "\n"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
