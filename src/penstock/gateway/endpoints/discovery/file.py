"""A file: which endpoints does another program write down for us?

We poll the file, because every way of replacing it (rename, editor, mounted ConfigMap, network disk) shows in `stat`,
but not every one in notifications. The file is read only when it looked the same twice, so one that is being written is
left alone; a file that is bad, empty or gone changes nothing. Its writer decides the destination of prompts, but must
not learn this process's environment: the file may use only variables listed in the settings.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from penstock.config.load import ConfigError, endpoints_from_text
from penstock.config.model import EndpointSection
from penstock.config.sections.discovery import FileWatch
from penstock.config.source import FILE_BYTES_MAX
from penstock.gateway.endpoints.discovery.base import Found, SourceError

LOOK_S = 1.0  # a `stat` costs microseconds; who edits a list of engines waits a second

_Look = tuple[int, int, int, int]


class FileSource:
    """The endpoints that one file lists."""

    def __init__(self, settings: FileWatch) -> None:
        self.name = f"file {settings.path}"
        self._path = Path(settings.path)
        self._env = settings.env
        self._taken: _Look | None = None  # how the file looked when it was last read, be its content good or not

    async def watch(self, found: Found) -> None:
        before: _Look | None = None
        while True:
            look = await asyncio.to_thread(self._look)
            if look == before and look != self._taken:
                text = await asyncio.to_thread(self._read)
                if await asyncio.to_thread(self._look) == look:  # otherwise the file changed while it was read: retry
                    self._taken = look
                    found(self._endpoints(text))
            before = look
            await asyncio.sleep(LOOK_S)

    def _look(self) -> _Look:
        try:
            stat = self._path.stat()
        except OSError as error:
            self._taken = None
            raise SourceError(f"cannot be read: {(error.strerror or str(error)).lower()}") from None
        return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                return file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise SourceError(f"cannot be read: {(error.strerror or str(error)).lower()}") from None

    def _endpoints(self, content: bytes) -> tuple[EndpointSection, ...]:
        if len(content) > FILE_BYTES_MAX:
            raise SourceError(f"is larger than {FILE_BYTES_MAX >> 20} MiB")
        try:
            env = {name: os.environ[name] for name in self._env if name in os.environ}
            return endpoints_from_text(content.decode("utf-8-sig"), self._path.name, env)
        except UnicodeDecodeError as error:
            raise SourceError(f"is not UTF-8 text (byte {error.start})") from None
        except ConfigError as error:
            raise SourceError("; ".join(problem.line() for problem in error.problems[:10])) from None
