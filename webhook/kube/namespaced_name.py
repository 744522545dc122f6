"""Where an object of a namespace is in the API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class NamespacedName:
    """An object's namespace and name. A kind says where the API keeps its collections.

    Attributes:
        API: The path of the group and version.
        RESOURCE: What the collection is called there.
    """

    API: ClassVar[str]
    RESOURCE: ClassVar[str]

    namespace: str
    name: str

    @property
    def collection_path(self) -> str:
        """The path of its collection."""
        return f"{self.API}/namespaces/{self.namespace}/{self.RESOURCE}"

    @property
    def path(self) -> str:
        """Its own path."""
        return f"{self.collection_path}/{self.name}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
