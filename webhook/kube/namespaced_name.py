"""Paths of namespaced objects in the API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class NamespacedName:
    """Namespace and name of an object; a subclass per resource type.

    Attributes:
        API: The path of group and version.
        RESOURCE: The plural name of the resource type.
    """

    API: ClassVar[str]
    RESOURCE: ClassVar[str]

    namespace: str
    name: str

    @property
    def collection_path(self) -> str:
        """The path of the collection."""
        return f"{self.API}/namespaces/{self.namespace}/{self.RESOURCE}"

    @property
    def path(self) -> str:
        """The path of the object."""
        return f"{self.collection_path}/{self.name}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
