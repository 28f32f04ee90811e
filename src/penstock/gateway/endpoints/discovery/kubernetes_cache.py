"""The current objects from a list and the events since, without stale or missing ones.

Objects are kept by uid, which is never used again. Each change of an object has a version. A change that is not newer
than the known version of its uid is stale: a duplicate, or overtaken by another change. The uid of a deleted object is
remembered with its version until the next list, so that a change which the deletion has overtaken does not bring the
object back. A list replaces everything, and changes not newer than the list are stale too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from penstock.gateway.endpoints.discovery.base import SourceError
from penstock.gateway.endpoints.discovery.kubernetes_objects import Meta

OBJECTS_MAX = 20_000  # of one source: a slice has up to 1,000 endpoints, a pod is one
DELETED_MAX = 20_000  # remembered between two lists; beyond that a new list is due


class KubernetesObject(Protocol):
    """A pod or a slice."""

    @property
    def metadata(self) -> Meta: ...


T = TypeVar("T", bound=KubernetesObject)


class Relist(Exception):  # noqa: N818 - no error: only a new list is needed
    """The changes can't be followed any further: list the objects again."""


class Cache(Generic[T]):
    """The objects of one kind that a selector finds."""

    def __init__(self) -> None:
        self.version = ""  #: the version at which the next watch begins
        self._objects: dict[str, T] = {}
        self._versions: dict[str, int] = {}  # of each uid, those of deleted objects included
        self._floor = 0  # the version of the last list

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    def listed(self, objects: list[T], version: str) -> None:
        """Take in a complete list as of `version`: an object that is not in it is gone.

        Raises SourceError if it holds more than `OBJECTS_MAX`.
        """
        if len(objects) > OBJECTS_MAX:
            raise SourceError(f"{len(objects)} objects are selected; at most {OBJECTS_MAX} are followed")
        self._objects = {found.metadata.uid: found for found in objects}
        self._versions = {}
        self._floor = _number(version) or 0
        self.version = version

    def came(self, found: T) -> bool:
        """An object was added or changed. Returns True if that was news. Raises Relist if there are too many now."""
        if not self._is_news(found.metadata):
            return False
        self._objects[found.metadata.uid] = found
        if len(self._objects) > OBJECTS_MAX:
            raise Relist(f"more than {OBJECTS_MAX} objects")
        return True

    def went(self, meta: Meta) -> bool:
        """An object was deleted. Returns True if that was news. Raises Relist after too many deletions."""
        if not self._is_news(meta):
            return False
        self._objects.pop(meta.uid, None)
        if len(self._versions) > len(self._objects) + DELETED_MAX:
            raise Relist("many objects were deleted")
        return True

    def passed(self, version: str) -> None:
        """The watch has come as far as `version`, whether or not it brought news."""
        new, now = _number(version), _number(self.version)
        if version and (new is None or now is None or new > now):
            self.version = version

    def _is_news(self, meta: Meta) -> bool:
        version = _number(meta.resource_version)
        if not meta.uid or version is None:
            raise Relist("an object without uid or a version that can be compared")
        if version <= max(self._floor, self._versions.get(meta.uid, 0)):
            return False
        self._versions[meta.uid] = version
        self.passed(meta.resource_version)
        return True


def _number(version: str) -> int | None:
    """Returns a version as a number; None if it is none.

    That versions are growing numbers is promised since Kubernetes 1.35, and was so before.
    """
    return int(version) if version.isascii() and version.isdecimal() and len(version) <= 20 else None
