"""An answer of an engine that has another name for the model: its `model` fields get the name that was asked for.

Field and value are looked for together, as JSON writes them, wherever they are nested (`message.model`). So no text is
changed, because quotes are escaped there. Bytes that may be their beginning are kept back until the next ones come.
"""

from __future__ import annotations

import msgspec

from penstock.gateway.openai.answers.packed import Packed


class Renamed(Packed):
    """One answer."""

    __slots__ = ("_changes", "_kept", "_longest")

    def __init__(self, theirs: str, ours: str, field: str) -> None:
        """`field`: of the request, that named the model; an answer may have it, too."""
        super().__init__("identity", passes=False)
        begins = [b'"%b":%b' % (name.encode(), space) for name in {"model", field} for space in (b"", b" ")]
        names = msgspec.json.encode(theirs), msgspec.json.encode(ours)
        self._changes = [(begin + names[0], begin + names[1]) for begin in begins]
        self._longest = max(len(written) for written, _ in self._changes)
        self._kept = b""
        self.keeps = True

    @property
    def breaks_off(self) -> bool:
        return False

    def ends(self) -> None:
        self.keeps = False

    def unpack(self, data: bytes) -> bytes:
        data = self._kept + data
        for theirs, ours in self._changes:
            data = data.replace(theirs, ours)
        at = self._begins(data) if self.keeps else len(data)
        self._kept = data[at:]
        return data[:at]

    def whole(self, data: bytes) -> bytes:
        return data

    def _begins(self, data: bytes) -> int:
        """Returns where a name begins that is not whole yet; the end if none does."""
        at = max(0, len(data) - self._longest + 1)
        while (at := data.find(b'"', at)) >= 0:
            rest = data[at:]
            if any(theirs.startswith(rest) for theirs, _ in self._changes):
                return at
            at += 1
        return len(data)
