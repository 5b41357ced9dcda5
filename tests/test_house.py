"""What the pages say is so: their code runs, their links lead somewhere, their tree is the tree."""

import contextlib
import doctest
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
EXAMPLES = sorted(ROOT.glob("examples/*.py"))
CODE_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
TREE_LINE = re.compile(r"^( *)([\w./-]+) {2,}\S")


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _python_blocks() -> Iterator[object]:
    """Each block by itself; a page's blocks of `>>>` lines share their names, as one story."""
    for page in PAGES:
        blocks = [
            code for language, code in CODE_BLOCK.findall(page.read_text()) if language == "python"
        ]
        story = "\n".join(code for code in blocks if ">>>" in code)
        for number, code in enumerate(
            [c for c in blocks if ">>>" not in c] + [story] * bool(story)
        ):
            yield pytest.param(code, id=f"{_name(page)}-{number}")


@pytest.mark.parametrize("code", list(_python_blocks()))
def test_code_on_a_page_runs(code: str) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if ">>>" in code:
            test = doctest.DocTestParser().get_doctest(code, {}, "page", None, 0)
            doctest.DocTestRunner().run(test)
            assert not printed.getvalue(), printed.getvalue()
        else:
            exec(code, {"__name__": "page"})


def _anchors(page: Path) -> set[str]:
    """The names that a page's headings can be linked by."""
    text = CODE_BLOCK.sub("", page.read_text())
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in HEADING.findall(text)
    }


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(CODE_BLOCK.sub("", page.read_text())):
        assert "://" not in link, f"{link}: leads out of the house, where no test can follow"
        name, _, anchor = link.partition("#")
        target = (page.parent / name) if name else page
        assert target.exists(), link
        assert target.resolve().is_relative_to(ROOT), link
        assert not anchor or anchor in _anchors(target), link


def _tree() -> set[str]:
    """The paths of README's tree, put together from its indentation."""
    found: set[str] = set()
    folders: list[str] = []
    (tree,) = (
        code
        for language, code in CODE_BLOCK.findall((ROOT / "README.md").read_text())
        if language == "tree"
    )
    for line in tree.splitlines():
        match = TREE_LINE.match(line)
        assert match, f"not a line of a tree: {line}"
        del folders[len(match[1]) // 2 :]
        found.add("".join(folders) + match[2])
        if match[2].endswith("/"):
            folders.append(match[2])
    return found


def test_the_tree_names_what_is_there() -> None:
    tree = _tree()
    assert sorted(name for name in tree if not (ROOT / name).exists()) == []
    modules = {
        _name(path) for top in ("kvdist", "transports") for path in (ROOT / top).rglob("*.py")
    }
    assert sorted(name for name in modules - tree if not name.endswith("__init__.py")) == []


def test_every_target_says_what_it_does() -> None:
    targets = re.findall(r"^([a-z]+):(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets
    assert [name for name, rest in targets if "## " not in rest] == []


@pytest.mark.timeout(130)
@pytest.mark.parametrize("example", EXAMPLES, ids=_name)
def test_example_runs(example: Path) -> None:
    command = [sys.executable, "-W", "error", str(example)]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
