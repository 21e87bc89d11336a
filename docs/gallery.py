"""A page for each example, and one with all of them, out of quick runs of the scripts."""

import ast
import shutil
from pathlib import Path

from examples import quick


def write(docs: Path) -> None:
    """Write ``gallery.md`` and the folder ``gallery``, which are not kept under version control."""
    folder = docs / "gallery"
    folder.mkdir(exist_ok=True)
    scripts = quick.scripts()
    made = quick.run_all([name for name in scripts if not quick.missing(name)])
    parts = [
        "# Gallery",
        "",
        "Every example, as it ran with `--quick` when this site was built: a few seconds each, for",
        "a first look. Runs of full length are told on the pages that these link to.",
        "",
    ]
    pages: list[str] = []
    for name, script in scripts.items():
        title, _, rest = (ast.get_docstring(ast.parse(script.read_text())) or name).partition("\n")
        title = title.rstrip(".")
        page = [f"# {title}", "", rest.strip("\n").replace("``", "`"), ""]
        page += [
            f"[A run of full length](../{told.relative_to(docs)})\n"
            for told in docs.glob(f"examples/**/{name}.md")
        ]
        figures: list[Path] = []
        if name in made:
            figures = [copied(figure, folder) for figure in sorted(made[name].glob("*.png"))]
            printed = (made[name] / "printed.txt").read_text(encoding="utf-8")
            page += ["It prints:", "", "```text", printed.rstrip("\n"), "```", ""]
        else:
            page += [f"It was not run for this site: it needs {quick.missing(name)}.", ""]
        page += [f"![{title}]({figure.name})\n" for figure in figures]
        source = script.relative_to(docs.parent)
        page += ["```{literalinclude} ../../" + str(source), ":language: python", "```"]
        update(folder / f"{name}.md", page)
        parts += [f"## [{title}](gallery/{name}.md)", ""]
        parts += [f"![{title}](gallery/{figure.name})\n" for figure in figures[:1]]
        pages += [f"gallery/{name}"]
    for stale in {page.stem for page in folder.glob("*.md")} - set(scripts):
        (folder / f"{stale}.md").unlink()
    contents = ["```{toctree}", ":hidden:", ":glob:", "", *pages, "examples/**", "```"]
    update(docs / "gallery.md", [*parts, *contents])


def copied(figure: Path, folder: Path) -> Path:
    """A figure beside the page that shows it."""
    return Path(shutil.copy2(figure, folder / figure.name))


def update(path: Path, lines: list[str]) -> None:
    """Write a file if that changes it, so that only what changed is built again."""
    text = "\n".join(lines) + "\n"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
