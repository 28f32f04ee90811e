"""Forms that are read as they come: fields are kept, the file passes, what is no form is refused."""

from __future__ import annotations

import pytest

from penstock.gateway.openai.multipart import BadForm, Form

FIELD_BYTES_MAX = 4 * 1024
HEADERS_BYTES_MAX = 8 * 1024

TYPE = b"multipart/form-data; boundary=edge"


def part(name: str, value: bytes, filename: str | None = None) -> bytes:
    more = "" if filename is None else f'; filename="{filename}"\r\nContent-Type: application/json'
    return b'--edge\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n' % (
        name.encode(),
        more.encode(),
        value,
    )


def read(data: bytes, step: int = 1 << 20, content_type: bytes = TYPE) -> tuple[Form, bytes]:
    pieces: list[bytes] = []
    form = Form(content_type, "file", pieces.append)
    for at in range(0, len(data), step):
        form.feed(data[at : at + step])
    return form, b"".join(pieces)


CONTENT = b"first\r\n--edg\r\n-\r\n--edge not\n\r\n\r\n--" * 3  # all but the boundary at a line's beginning
CONTENT = CONTENT.replace(b"--edge", b"--ed_e")


@pytest.mark.parametrize("step", [1, 2, 3, 5, 8, 13, 64, 1000])
def test_the_file_comes_out_as_it_went_in_however_its_bytes_come(step: int) -> None:
    body = (
        b"preamble\r\n"
        + part("purpose", b"batch")
        + part("file", CONTENT, "in put.jsonl")
        + part("expires_after[seconds]", b"3600")
    )
    form, content = read(body + b"--edge--\r\nepilogue", step)
    assert content == CONTENT
    assert form.fields == {"purpose": "batch", "expires_after[seconds]": "3600"}
    assert form.filename == "in put.jsonl"
    assert form.ended


def test_an_empty_file_and_a_quoted_boundary_are_fine() -> None:
    body = part("file", b"", "empty").replace(b"edge", b"a b") + b"--a b--"
    form, content = read(body, content_type=b'multipart/form-data; charset=utf-8; boundary="a b"')
    assert (content, form.filename, form.ended) == (b"", "empty", True)


def test_the_headers_of_a_part_may_have_8_kib() -> None:
    short = part("a", b"v").removeprefix(b"--edge")
    more = b"\r\nx: " + b"x" * (8 * 1024 - short.index(b"\r\n\r\n") - 5)
    form, _ = read(b"--edge" + short.replace(b"\r\n\r\n", more + b"\r\n\r\n") + b"--edge--")
    assert form.fields == {"a": "v"}
    with pytest.raises(BadForm):
        read(b"--edge" + short.replace(b"\r\n\r\n", more + b"x\r\n\r\n") + b"--edge--")


def test_a_form_that_is_cut_off_has_not_ended() -> None:
    assert not read(part("file", b"abc", "f"))[0].ended
    assert not read(part("file", b"abc", "f") + b"--edge-")[0].ended


@pytest.mark.parametrize(
    "content_type", [b"", b"application/json", b"multipart/form-data", b"multipart/form-data; boundary=" + b"x" * 999]
)
def test_a_malformed_form_is_refused(content_type: bytes) -> None:
    with pytest.raises(BadForm):
        read(b"", content_type=content_type)


@pytest.mark.parametrize(
    "body",
    [
        b"--edge\r\n\r\nno headers\r\n--edge--",
        b"--edge\r\nContent-Type: text/plain\r\n\r\nno name\r\n--edge--",
        b"--edge\r\nx: " + b"x" * HEADERS_BYTES_MAX,
        b"--edgeX\r\n",
        part("file", b"a", "f") + part("file", b"b", "f"),
        part("purpose", b"a") + part("purpose", b"b"),
        part("purpose", b"a" * (FIELD_BYTES_MAX + 100)),
        b"".join(part(f"f{n}", b"") for n in range(33)),
    ],
)
@pytest.mark.parametrize("step", [1, 1 << 20])
def test_a_broken_form_is_refused(body: bytes, step: int) -> None:
    with pytest.raises(BadForm):
        read(body, step)
