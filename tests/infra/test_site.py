"""The site: its nav has every page, its reference every public name, links hold."""

import importlib.util
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args
from urllib.parse import unquote, urlsplit

import griffe
import pytest
import yaml
from markdown_it import MarkdownIt
from pydantic import BaseModel

import dptune
from dptune import errors
from dptune.config import TrainConfig
from dptune.integrations import transformers as scripts
from dptune.settings import LoraSettings
from infra.workspace import REPOSITORY

DOCS = REPOSITORY / "docs"
CONFIGURATION = REPOSITORY / "mkdocs.yml"
REFERENCE = "\n".join(path.read_text() for path in DOCS.glob("reference/*.md"))
KINDS = ["Start here", "Tutorials", "How to", "Reference", "Explanation"]


def load_hooks():
    spec = importlib.util.spec_from_file_location("hooks", DOCS / "site_hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hooks = load_hooks()


class Loader(yaml.SafeLoader):
    """Reads the nav and passes over tags that name Python."""


Loader.add_multi_constructor("tag:yaml.org,2002:python", lambda *_: None)


@pytest.fixture(scope="module")
def nav():
    return Loader(CONFIGURATION.read_text()).get_data()["nav"]


def pages(entry):
    """Paths of a part of the nav."""
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [path for part in parts for path in pages(part)]


def absent(nav, folder):
    """Pages of a folder that the nav lacks, and paths of it that are no pages."""
    files = {
        path.relative_to(folder).with_suffix(".md").as_posix()
        for kind in ("*.md", "*.ipynb")
        for path in folder.rglob(kind)
    }
    named = pages(nav)
    assert len(set(named)) == len(named)
    return files ^ {path for path in named if not path.startswith("source/")}


def test_nav_has_the_four_kinds_of_documents_and_every_page(nav):
    assert [next(iter(part)) for part in nav] == KINDS
    assert len(pages(nav)) > 40
    assert absent(nav, DOCS) == set()


def test_page_that_the_nav_lacks_is_found(tmp_path):
    (tmp_path / "A.md").touch()
    assert absent([{"Start": ["B.md", "source/C.md"]}], tmp_path) == {"A.md", "B.md"}


def test_reference_has_every_public_name():
    page = (DOCS / "reference" / "dptune.md").read_text()
    named = re.findall(r"(?m)^::: dptune\.(\w+)$", page)
    assert sorted(named) == sorted(dptune.__all__)


def test_reference_has_the_trainers_and_every_error():
    for name in scripts.__all__:
        assert f"::: dptune.integrations.transformers.{name}\n" in REFERENCE
    assert "::: dptune.errors\n" in REFERENCE
    ours = [
        found
        for found in vars(errors).values()
        if isinstance(found, type) and found.__module__ == errors.__name__
    ]
    assert len(ours) > 1
    assert all(found.__doc__ for found in ours)


def settings_in(annotation):
    """All models that a value of a configuration may be, and those inside of them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields.values()
        return {annotation}.union(*(settings_in(f.annotation) for f in fields))
    return set().union(*map(settings_in, get_args(annotation)))


def test_reference_has_all_settings_of_a_configuration():
    blocks = re.split(r"(?m)^::: ", REFERENCE)[1:]
    named = {block.split()[0] for block in blocks}
    for block in blocks:
        for members in re.findall(r"members: \[([^]]*)\]", block):
            named |= {f"{block.split()[0]}.{one}" for one in members.split(", ")}
    needed = {f"{one.__module__}.{one.__name__}" for one in settings_in(TrainConfig)}
    assert len(needed) > 40
    assert needed <= named


@pytest.mark.parametrize(
    ("link", "page", "wanted"),
    [
        (
            "[a](../configs/train/x.yaml)",
            "DATA.md",
            "[a](source/configs/train/x.yaml.txt)",
        ),
        (
            "[a](../CONTRIBUTING.md#tests)",
            "README.md",
            "[a](source/CONTRIBUTING.md#tests)",
        ),
        (
            "[a](../../dptune/text.py)",
            "tutorials/a.md",
            "[a](../source/dptune/text.py.txt)",
        ),
        (
            "[a](examples/deploy.yaml)",
            "DATA.md",
            "[a](source/docs/examples/deploy.yaml.txt)",
        ),
        ("[a](docs/DATA.md#x)", "source/README.md", "[a](../DATA.md#x)"),
        ("[a](docs/images/x.png)", "source/README.md", "[a](../images/x.png)"),
        ("[a](NOTIONS.md#x)", "DATA.md", "[a](NOTIONS.md#x)"),
        ("[a](tutorials/x.ipynb)", "DATA.md", "[a](tutorials/x.md)"),
        ("[a](#here)", "DATA.md", "[a](#here)"),
        ("[a](https://example.org/x)", "DATA.md", "[a](https://example.org/x)"),
        ("```\n[a](../x.py)\n```", "DATA.md", "```\n[a](../x.py)\n```"),
    ],
)
def test_links_lead_to_where_files_stand_in_the_site(link, page, wanted):
    assert hooks.relinked(link, page) == wanted


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda p: p.name)
def test_files_that_come_along_exist(path):
    uri = path.relative_to(DOCS).as_posix()
    links = hooks.repository_links(path.read_text(encoding="utf-8"), uri)
    assert [link for link in links if not (REPOSITORY / link).exists()] == []


def test_reference_knows_the_fields_and_defaults_of_models():
    package = griffe.load("dptune.settings", search_paths=[str(REPOSITORY)])
    hooks.Docstrings().on_object(obj=package["LoraSettings"])
    shown = {p.name: str(p.default) for p in package["LoraSettings"].parameters}
    shown.pop("self", None)
    real = LoraSettings.model_fields
    assert set(shown) == set(real)
    assert {n for n, default in shown.items() if default == "None"} == {
        n for n, f in real.items() if f.is_required() or f.default is None
    }


def test_examples_of_docstrings_become_blocks_of_code():
    module = griffe.visit("m", Path("m.py"), '"""Do.\n\n>>> 1 + 1\n2\n\nMore."""')
    hooks.Docstrings().on_object(obj=module)
    assert module.docstring.value == "Do.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore."


class Links(HTMLParser):
    """What a page links to and loads, and what in it can be linked to."""

    def __init__(self, text):
        super().__init__()
        self.targets, self.loaded, self.anchors = set(), set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.anchors |= {values.get("id"), values.get("name")}
        if tag == "a":
            self.targets.add(values.get("href"))
        elif tag != "meta" and values.get("rel") != "canonical":
            self.loaded |= {values.get("href"), values.get("src")}


def faults(site):
    """Links of a built site that lead nowhere, and what it would fetch."""
    files = [p for p in site.rglob("*.html") if p.name != "404.html"]
    pages = {path.resolve(): Links(path.read_text("utf-8")) for path in files}
    for path, page in pages.items():
        for target in (page.targets | page.loaded) - {None, ""}:
            parts = urlsplit(target)
            if parts.scheme in ("http", "https", "") and parts.netloc:
                if target in page.loaded:
                    yield f"{path.name} fetches {target}"
            elif parts.scheme in ("", "file"):
                place = unquote(parts.path)
                file = (path.parent / place).resolve() if place else path
                known = pages.get(file)
                if not file.exists() or (
                    parts.fragment
                    and known is not None
                    and unquote(parts.fragment) not in known.anchors
                ):
                    yield f"{path.name} links to {target}"


def otherwise(page, shown):
    """Lists, tables and blocks that a page of the site has more or less of."""
    read = MarkdownIt("commonmark").enable("table").render(page)
    article = shown[shown.index("<article") : shown.index("</article>")]
    counts = (
        (tag, *(len(re.findall(f"<{tag}[ >]", text)) for text in (read, article)))
        for tag in ("ol", "ul", "li", "pre", "table", "tr")
    )
    return [f"{tag}: {here}, {there}" for tag, here, there in counts if here != there]


def test_list_that_the_site_reads_otherwise_is_found():
    page = "1. a\n\n   ```\n   b\n   ```\n\n2. c\n"
    shown = "<article><ol><li>a</li></ol><pre></pre><ol><li>c</li></ol></article>"
    assert otherwise(page, shown) == ["ol: 1, 2"]


def test_site_builds_strictly_and_needs_no_network(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    done = subprocess.run(
        [*command, "--site-dir", str(tmp_path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(faults(tmp_path)) == []
    for path in (p for p in DOCS.rglob("*.md") if p.parent.name != "reference"):
        name = path.relative_to(DOCS).with_suffix(".html").as_posix()
        shown = tmp_path / name.replace("README", "index")
        assert otherwise(path.read_text("utf-8"), shown.read_text("utf-8")) == [], name
    page = (tmp_path / "reference" / "dptune.html").read_text("utf-8")
    assert all(f'id="dptune.{name}"' in page for name in dptune.__all__)


def test_broken_and_foreign_parts_of_a_site_are_found(tmp_path):
    (tmp_path / "b.html").write_text('<p id="here">')
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here"></a><a href="b.html#gone"></a><a href="c.html"></a>'
        '<a href="https://example.org"></a><script src="https://cdn.example/x.js">'
    )
    assert sorted(faults(tmp_path)) == [
        "a.html fetches https://cdn.example/x.js",
        "a.html links to b.html#gone",
        "a.html links to c.html",
    ]
