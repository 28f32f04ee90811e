"""A client of the files and batches API that streams files."""

from __future__ import annotations

import http.client
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from penstock.cli.admin_client import GatewayError, base, reach, read_json

TIMEOUT_S = 120.0
PIECE_BYTES = 1 << 18
LIST_MAX = 100


class BatchClient:
    """Calls the files and batches API of one gateway. Every call may raise `GatewayError`."""

    def __init__(self, url: str, *, key: str | None, tenant: str | None) -> None:
        self._url = base(url)
        self._headers = {}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        if tenant:
            self._headers["x-tenant-id"] = tenant

    def batches(self, limit: int) -> list[dict[str, Any]]:
        """Returns up to `limit` batches, the newest first."""
        found: list[dict[str, Any]] = []
        while len(found) < limit:
            after = f"&after={quote(found[-1]['id'])}" if found else ""
            page = self._json("GET", f"/v1/batches?limit={min(limit - len(found), LIST_MAX)}{after}")
            found += page["data"]
            if not page["has_more"]:
                break
        return found

    def batch(self, name: str) -> dict[str, Any]:
        return self._json("GET", f"/v1/batches/{quote(name, safe='')}")

    def cancel(self, name: str) -> dict[str, Any]:
        return self._json("POST", f"/v1/batches/{quote(name, safe='')}/cancel")

    def create(self, file: str, endpoint: str, window: str) -> dict[str, Any]:
        body = {"input_file_id": file, "endpoint": endpoint, "completion_window": window}
        return self._json("POST", "/v1/batches", json.dumps(body).encode(), "application/json")

    def upload(self, path: Path) -> dict[str, Any]:
        """Upload a file; returns its object. Holds only one chunk in memory."""
        edge = secrets.token_hex(16)
        name = path.name.replace('"', "'")
        head = (
            f'--{edge}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            f'--{edge}\r\ncontent-disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
        ).encode()
        tail = f"\r\n--{edge}--\r\n".encode()
        with path.open("rb") as file:
            size = len(head) + path.stat().st_size + len(tail)
            kind = f"multipart/form-data; boundary={edge}"
            return self._json("POST", "/v1/files", _pieces(head, file, tail), kind, size)

    def download(self, file: str, path: Path) -> int:
        """Write a file's content to `path`; returns its number of lines. A broken download leaves no file at `path`."""
        part = path.with_name(path.name + ".part")
        lines = written = 0
        try:
            with self._open("GET", f"/v1/files/{quote(file, safe='')}/content") as answer, part.open("wb") as out:
                expected = answer.headers["content-length"]  # a proxy may have taken it out
                while piece := answer.read(PIECE_BYTES):
                    out.write(piece)
                    written += len(piece)
                    lines += piece.count(b"\n")
            if expected is not None and written != int(expected):
                raise GatewayError(f"{file} broke off after {written} of {expected} bytes")
            part.replace(path)
        except http.client.HTTPException as error:
            raise GatewayError(f"{file} broke off after {written} bytes: {error!r}") from None
        finally:
            part.unlink(missing_ok=True)
        return lines

    def _json(
        self, method: str, path: str, data: Any = None, content_type: str | None = None, size: int | None = None
    ) -> dict[str, Any]:
        with self._open(method, path, data, content_type, size) as answer:
            found: dict[str, Any] = read_json(answer)
            return found

    def _open(
        self, method: str, path: str, data: Any = None, content_type: str | None = None, size: int | None = None
    ) -> Any:
        headers = {
            **self._headers,
            **({"content-type": content_type} if content_type else {}),
            **({"content-length": str(size)} if size is not None else {}),
        }
        return reach(self._url + path, method, data, headers, timeout_s=TIMEOUT_S)


def _pieces(head: bytes, file: IO[bytes], tail: bytes) -> Iterator[bytes]:
    yield head
    while piece := file.read(PIECE_BYTES):
        yield piece
    yield tail
