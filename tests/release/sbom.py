"""The bill of materials of a release in the CycloneDX 1.6 JSON format (https://cyclonedx.org/docs/1.6/json/)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from tests.release.lock_files import LockedPackage

SPEC_VERSION = "1.6"


def bill_of_materials(
    name: str, version: str, license_id: str, packages: Sequence[LockedPackage], time: datetime
) -> dict[str, Any]:
    """Return the document; equal inputs give equal documents.

    Args:
        packages: Of the lock file that is installed.
        time: When the release was made, in UTC.
    """
    root = f"pkg:pypi/{name}@{version}"
    reference = {each.name: f"pkg:pypi/{each.name}@{each.version}" for each in packages}
    direct = [reference[each.name] for each in packages if not each.parents]
    children: dict[str, list[str]] = {each.name: [] for each in packages}
    for each in packages:
        for parent in each.parents:
            children[parent].append(reference[each.name])
    own = {"type": "application", "bom-ref": root, "name": name, "version": version, "purl": root}
    document = {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC_VERSION}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "version": 1,
        "metadata": {
            "timestamp": f"{time:%Y-%m-%dT%H:%M:%SZ}",
            "lifecycles": [{"phase": "build"}],
            "component": own | {"licenses": [{"license": {"id": license_id}}]},
        },
        "components": [_component(each, reference[each.name]) for each in packages],
        "dependencies": [
            {"ref": root, "dependsOn": sorted(direct)},
            *({"ref": reference[parent], "dependsOn": sorted(found)} for parent, found in sorted(children.items())),
        ],
    }
    return document | {"serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, json.dumps(document, sort_keys=True))}"}


def _component(package: LockedPackage, reference: str) -> dict[str, Any]:
    """Return a package; the hashes are those of all files that an installation accepts."""
    files = {
        "type": "distribution",
        "url": reference,
        "hashes": [{"alg": "SHA-256", "content": digest} for digest in package.hashes],
    }
    found = {
        "type": "library",
        "bom-ref": reference,
        "name": package.name,
        "version": package.version,
        "purl": reference,
        "scope": "optional" if package.marker else "required",
        "externalReferences": [files],
    }
    return found | ({"properties": [{"name": "marker", "value": package.marker}]} if package.marker else {})
