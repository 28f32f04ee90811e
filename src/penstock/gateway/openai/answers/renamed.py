"""An answer of an engine that has another name for the model: its `model` fields get the name that was asked for.

Field and value are looked for together, as JSON writes them, wherever they are nested (`message.model`). So no text is
changed, because quotes are escaped there. Bytes that may be their beginning are kept back until the next ones come.
"""

from __future__ import annotations

import msgspec

from penstock.gateway.openai.answers.packed import Packed
from penstock.http.client.call import Sink


def renames(theirs: str, ours: str, field: str) -> Packed | None:
    """Returns how an answer with `theirs` becomes one with `ours`; None if that is the same name.

    `field`: of the request, that named the model. The answer may have it beside `model`.
    """
    return None if theirs == ours else Renamed(theirs, ours, field)


class Renamed(Packed):
    """One answer."""

    __slots__ = ("_changes", "_is_whole", "_kept", "_longest")

    def __init__(self, theirs: str, ours: str, field: str) -> None:
        super().__init__("identity", passes=False)
        begins = [b'"%b":%b' % (name.encode(), space) for name in {"model", field} for space in (b"", b" ")]
        names = msgspec.json.encode(theirs), msgspec.json.encode(ours)
        self._changes = [(begin + names[0], begin + names[1]) for begin in begins]
        self._longest = max(len(written) for written, _ in self._changes)
        self._kept = b""
        self._is_whole = False

    def ends(self, sink: Sink) -> bool:
        self._is_whole = True
        sink.on_data(b"")
        return True

    def unpack(self, data: bytes) -> bytes:
        data = self._kept + data
        for theirs, ours in self._changes:
            data = data.replace(theirs, ours)
        at = len(data) if self._is_whole else self._begins(data)
        self._kept = data[at:]
        return data[:at]

    def whole(self, data: bytes) -> bytes:
        return data

    def _begins(self, data: bytes) -> int:
        """Returns where a name begins that is not whole yet; the end if none does."""
        at = max(0, len(data) - self._longest + 1)
        while (at := data.find(b'"', at)) >= 0:
            rest = data[at:]
            if any([theirs.startswith(rest) for theirs, _ in self._changes]):  # noqa: C419 - mypyc can't pass a generator
                return at
            at += 1
        return len(data)
