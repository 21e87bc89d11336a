"""A page for each example, and one with all of them, out of the scripts and their figures."""

import ast
from pathlib import Path


def write(docs: Path) -> None:
    """Write ``gallery.md`` and the folder ``gallery``, which are not kept under version control."""
    folder = docs / "gallery"
    folder.mkdir(exist_ok=True)
    parts = ["# Gallery", "", "Figures are those that the scripts of `examples/` have made.", ""]
    pages: list[str] = []
    for script in sorted(docs.parent.glob("examples/**/*.py")):
        tree = ast.parse(script.read_text())
        if not runs(tree):
            continue
        title, _, rest = (ast.get_docstring(tree) or script.stem).partition("\n")
        title = title.rstrip(".")
        figures = sorted(docs.glob(f"examples/**/{script.stem}*.png"))
        told = [
            f"../{page.relative_to(docs)}" for page in docs.glob(f"examples/**/{script.stem}.md")
        ]
        source = script.relative_to(docs.parent)
        page = [f"# {title}", "", rest.strip("\n").replace("``", "`"), ""]
        page += [f"[What came out]({link})\n" for link in told]
        page += [f"![{title}](../{figure.relative_to(docs)})\n" for figure in figures]
        page += ["```{literalinclude} ../../" + str(source), ":language: python", "```"]
        update(folder / f"{script.stem}.md", page)
        parts += [f"## [{title}](gallery/{script.stem}.md)", ""]
        parts += [f"![{title}]({figure.relative_to(docs)})\n" for figure in figures[:1]]
        pages += [f"gallery/{script.stem}"]
    for stale in {page.stem for page in folder.glob("*.md")} - {Path(page).stem for page in pages}:
        (folder / f"{stale}.md").unlink()
    contents = ["```{toctree}", ":hidden:", ":glob:", "", *pages, "examples/**", "```"]
    update(docs / "gallery.md", [*parts, *contents])


def runs(tree: ast.Module) -> bool:
    """Whether a file does something of itself; others are modules that examples share."""
    calls = (node for node in tree.body if isinstance(node, ast.Expr | ast.If))
    return any(
        isinstance(node.value, ast.Call)
        if isinstance(node, ast.Expr)
        else "__main__" in ast.unparse(node.test)
        for node in calls
    )


def update(path: Path, lines: list[str]) -> None:
    """Write a file if that changes it, so that only what changed is built again."""
    text = "\n".join(lines) + "\n"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
