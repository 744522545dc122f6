"""The bill of materials of a release in the CycloneDX 1.6 JSON format (https://cyclonedx.org/docs/1.6/json/)."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from datetime import datetime
from email.parser import Parser
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote
from uuid import NAMESPACE_URL, uuid5

from tests.release.lock_files import LockedPackage
from tests.release.runtime import STATUS_FOLDER

SPEC_VERSION = "1.6"


class SystemPackage(NamedTuple):
    """A package of Debian or Ubuntu.

    Attributes:
        distribution: Its ID and version in os-release: ("debian", "12").
    """

    name: str
    version: str
    architecture: str
    distribution: tuple[str, str]

    @property
    def reference(self) -> str:
        """Its package URL."""
        vendor, release = self.distribution
        qualifiers = f"arch={self.architecture}&distro={vendor}-{release}"
        return f"pkg:deb/{vendor}/{quote(self.name)}@{quote(self.version, safe='')}?{qualifiers}"

    def to_component(self) -> dict[str, Any]:
        """Return it as a component."""
        reference = {"bom-ref": self.reference, "purl": self.reference}
        return {"type": "library", "name": self.name, "version": self.version, "scope": "required", **reference}


def read_system_packages(tree: Path) -> list[SystemPackage]:
    """Return the packages whose files are in a runtime, from their control files; this machine built it."""
    release = platform.freedesktop_os_release()
    files = sorted((tree / STATUS_FOLDER).iterdir())
    fields = [Parser().parsestr(file.read_text(encoding="utf-8"), headersonly=True) for file in files]
    distribution = (release["ID"], release.get("VERSION_ID", "unstable"))
    return [SystemPackage(each["Package"], each["Version"], each["Architecture"], distribution) for each in fields]


def bill_of_materials(
    name: str,
    version: str,
    license_id: str,
    packages: Sequence[LockedPackage],
    time: datetime,
    system: Sequence[SystemPackage] = (),
) -> dict[str, Any]:
    """Return the document; equal inputs give equal documents.

    Args:
        packages: Of the lock file that is installed.
        system: Packages of Debian or Ubuntu that are shipped with them.
        time: When the release was made, in UTC.
    """
    root = f"pkg:pypi/{name}@{version}"
    reference = {each.name: f"pkg:pypi/{each.name}@{each.version}" for each in packages}
    direct = [*(reference[each.name] for each in packages if not each.parents), *(each.reference for each in system)]
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
        "components": [
            *(_component(each, reference[each.name]) for each in packages),
            *(each.to_component() for each in system),
        ],
        "dependencies": [
            {"ref": root, "dependsOn": sorted(direct)},
            *({"ref": reference[parent], "dependsOn": sorted(found)} for parent, found in sorted(children.items())),
            *({"ref": each.reference, "dependsOn": []} for each in system),
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
