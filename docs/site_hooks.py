"""What mkdocs does not know of these documents: they link to the repository's files.

Such a file comes along, so that the site needs no server and no network: Markdown as a
page under `source/`, anything else as plain text, a folder as the list of its files.
The documents stay as they are, readable in the repository. Notebooks are pages like all
others, with the outputs that they hold, and examples of docstrings are blocks of code.
"""

import json
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).resolve().parents[1]
CARRIED = "source"
_PAGES = (".md", ".ipynb", ".png", ".svg", ".css")
_AS_IT_IS = (".md", ".png", ".svg", ".json", ".txt", ".gz", ".safetensors")
_FENCE = re.compile(r"(?ms)^( *)(```+)[^\n]*\n.*?^ *\2 *$")
_EXAMPLE = re.compile(r"(?ms)^>>> .*?(?=\n\n|\Z)")
_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(?=\))")


class Docstrings(griffe.Extension):
    """Shows docstrings as they are meant.

    Examples are told by their prompts, and become blocks of code. A pydantic model gets
    the signature that its fields give it.
    """

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Change an object after everything was read."""
        if obj.docstring is not None:
            text = obj.docstring.value
            obj.docstring.value = _EXAMPLE.sub(r"```pycon\n\g<0>\n```", text)
        if isinstance(obj, griffe.Class) and is_model(obj):
            fields = [field for field in _fields(obj) if field.name != "schema_version"]
            made = griffe.Function("__init__", parameters=griffe.Parameters(*fields))
            obj.set_member("__init__", made)


def is_model(obj: griffe.Class) -> bool:
    """Whether a class is a pydantic model, which knows no signature but its fields."""
    return any(
        str(base).endswith("BaseModel")
        for one in (obj, *obj.mro())
        for base in one.bases
    )


def _fields(obj: griffe.Class) -> list[griffe.Parameter]:
    """Return the fields of a model and of its bases, each with its default."""
    found = {}
    for one in (*reversed(obj.mro()), obj):
        for name, field in one.attributes.items():
            if (
                field.annotation is None
                or name.startswith("_")
                or name == "model_config"
            ):
                continue
            kind = griffe.ParameterKind.keyword_only
            found[name] = griffe.Parameter(
                name, annotation=field.annotation, kind=kind, default=_default(field)
            )
    return list(found.values())


def _default(field: griffe.Attribute) -> griffe.Expr | str | None:
    """Return the default that `Field(...)` has, if it is one."""
    value = field.value
    if not isinstance(value, griffe.ExprCall) or str(value.function) != "Field":
        return value
    named = {
        k.name: k.value for k in value.arguments if isinstance(k, griffe.ExprKeyword)
    }
    if "default_factory" in named:
        return f"{named['default_factory']}()"
    return named.get("default")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add notebooks, and the files of the repository that pages link to, and so on."""
    for notebook in [f for f in files if f.src_uri.endswith(".ipynb")]:
        files.remove(notebook)
        text = notebook_page(notebook.content_string)
        files.append(File.generated(config, _page(notebook.src_uri), content=text))
    pages = [f for f in files.documentation_pages() if f.src_uri.endswith(".md")]
    waiting = [(page.src_uri, page.content_string) for page in pages]
    while waiting:
        uri, text = waiting.pop()
        for path in sorted(repository_links(text, uri)):
            name = site_uri(path)
            if files.get_file_from_path(name) is not None:
                continue
            content = readable(REPOSITORY / path)
            level = InclusionLevel.NOT_IN_NAV
            files.append(File.generated(config, name, content=content, inclusion=level))
            if name.endswith(".md"):
                waiting.append((name, str(content)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Lead links to where their files stand in the site."""
    return relinked(markdown, page.file.src_uri)


def relinked(markdown: str, uri: str) -> str:
    """Rewrite the links of a page of the site to files of the repository."""

    def replace(match: re.Match[str]) -> str:
        link, hash_sign, fragment = match[2].partition("#")
        path = repository_path(link, uri)
        if path is not None:
            link = posixpath.relpath(site_uri(path), posixpath.dirname(uri) or ".")
        return f"{match[1]}{_page(link)}{hash_sign}{fragment}"

    return _outside_fences(markdown, lambda text: _LINK.sub(replace, text))


def repository_links(markdown: str, uri: str) -> set[str]:
    """Paths of the files, from the repository's root, that a page brings along."""
    found = _LINK.findall(_FENCE.sub("", markdown))
    paths = {repository_path(target, uri) for _, target in found}
    return {path for path in paths if path is not None}


def repository_path(target: str, uri: str) -> str | None:
    """Resolve a link of a page to a file that is no page of docs/; None for others."""
    path = target.partition("#")[0]
    if not path or "://" in path or path.startswith("mailto:"):
        return None
    carried = f"{CARRIED}/"
    is_carried = uri.startswith(carried)
    here = uri.removeprefix(carried) if is_carried else f"docs/{uri}"
    found = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
    is_page = found.startswith("docs/") and found.endswith(_PAGES)
    return None if is_page and not is_carried else found


def site_uri(path: str) -> str:
    """Name the file of the site that a file of the repository becomes."""
    if path.startswith("docs/") and path.endswith(_PAGES):
        return path.removeprefix("docs/")
    return f"{CARRIED}/{path}" if path.endswith(_AS_IT_IS) else f"{CARRIED}/{path}.txt"


def readable(path: Path) -> str | bytes:
    """Return a file, or the names of the files in a folder."""
    if path.is_dir():
        files = (file for file in path.rglob("*") if file.is_file())
        names = (file.relative_to(REPOSITORY).as_posix() for file in files)
        return "\n".join(sorted(name for name in names if "__pycache__" not in name))
    return path.read_text("utf-8") if path.suffix == ".md" else path.read_bytes()


def notebook_page(text: str) -> str:
    """Write the cells of a notebook, and what they printed, as Markdown."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        printed = "".join(_shown(output) for output in cell["outputs"]).rstrip()
        if printed:
            parts.append(f"```text\n{printed}\n```")
    return "\n\n".join(parts) + "\n"


def _shown(output: dict[str, Any]) -> str:
    """Return what an output says in plain text."""
    text = output["text"] if "text" in output else output["data"]["text/plain"]
    return "".join(text) if isinstance(text, list) else str(text)


def _page(link: str) -> str:
    """Name the page that a notebook becomes; other links stay."""
    return link.removesuffix(".ipynb") + ".md" if link.endswith(".ipynb") else link


def _outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    """Change a text, but for its blocks of code."""
    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [change(markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(markdown[end:])])
