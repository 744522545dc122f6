"""Hooks of MkDocs, which mkdocs.yml names: they add pages outside of docs/, adapt links and diagrams, keep versions."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

from tests.release.publisher import repository_address
from tests.site.pages import OUTSIDE_DOCS, adapt_page
from tests.site.versions import index_versions

ROOT = Path(__file__).resolve().parent.parent.parent


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Build into a folder of this version, show it at the foot of each page, and name anchors as GitHub does."""
    config.site_dir = str(Path(config.site_dir, _project()["version"]))
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    config.copyright = f"Rightslice {_project()['version']}"
    return config


def on_post_build(config: MkDocsConfig) -> None:
    """Add this version to those that are built already."""
    index_versions(Path(config.site_dir).parent)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside of docs/."""
    for name, inside in OUTSIDE_DOCS.items():
        files.append(File.generated(config, inside, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Adapt one page; `markdown` is the file without front matter."""
    assert page.file.abs_src_path is not None
    path = Path(page.file.abs_src_path).relative_to(ROOT).as_posix()
    return adapt_page(markdown, path, _address)


def _address(path: str) -> str:
    """Return the address of a file or folder of the checkout in the repository."""
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    return f"{repository_address()}/{kind}/v{_project()['version']}/{path}"


def _project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found
