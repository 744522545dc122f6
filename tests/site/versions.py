"""Versions of the site: each has a folder, which the pages' selector finds in versions.json, as mike writes it."""

from __future__ import annotations

import json
import re
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


def built_versions(site: Path) -> list[str]:
    """Return the versions that a site contains, the newest first."""
    names = [folder.name for folder in site.iterdir() if _VERSION.fullmatch(folder.name)]
    return sorted(names, key=lambda name: tuple(map(int, name.split("."))), reverse=True)
