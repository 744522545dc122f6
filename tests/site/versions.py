"""Versions of the site: each has a folder, which the pages' selector finds in versions.json, as mike writes it.

The selector leads to the same page of another version if that version's sitemap.xml has it, else to its start page.
"""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path

LATEST = "latest"
"""The alias of the newest version."""

INDEX = f"""\
<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>Rightslice</title>
<meta http-equiv="refresh" content="0; url={LATEST}/index.html">
<a href="{LATEST}/index.html">Documentation of Rightslice</a>
"""
ANY_HOST = "http://localhost/"
"""Begins the addresses of a sitemap. The selector compares what follows: the site is not built for one address."""

_VERSION = re.compile(r"\d+\.\d+\.\d+")


def index_versions(site: Path) -> None:
    """Write versions.json, the alias of the newest version, and a page that leads to it."""
    newest, *others = built_versions(site)
    entries = [{"version": newest, "title": newest, "aliases": [LATEST]}]
    entries += [{"version": version, "title": version, "aliases": []} for version in others]
    (site / "versions.json").write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    (site / LATEST).unlink(missing_ok=True)
    (site / LATEST).symlink_to(newest)
    (site / "index.html").write_text(INDEX, encoding="utf-8")
    for version in (newest, *others):
        (site / version / "sitemap.xml").write_text(_sitemap(site, version), encoding="utf-8")


def _sitemap(site: Path, version: str) -> str:
    """Return the addresses of the folder of a version and of its pages."""
    folder = site / version
    pages = sorted(page.relative_to(site).as_posix() for page in folder.rglob("*.html"))
    entries = "".join(f"<url><loc>{ANY_HOST}{escape(page)}</loc></url>\n" for page in (f"{version}/", *pages))
    return f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{entries}</urlset>\n'


def built_versions(site: Path) -> list[str]:
    """Return the versions that a site contains, the newest first."""
    names = [folder.name for folder in site.iterdir() if _VERSION.fullmatch(folder.name)]
    return sorted(names, key=lambda name: tuple(map(int, name.split("."))), reverse=True)
