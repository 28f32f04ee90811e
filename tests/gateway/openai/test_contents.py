"""What bodies of the usual SDKs hold: pieces by kind, token ids, inputs and answers; base64 is never text."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest

from penstock.core.values.request import Contents
from penstock.gateway.openai.body import BadBody, Read, read, read_large
from penstock.gateway.openai.forms import read_form
from tests.gateway.conftest import run

RANDOM = random.Random(7)
PNG = b"\x89PNG\r\n\x1a\n" + RANDOM.randbytes(300_000)
JPEG = b"\xff\xd8\xff\xe0" + RANDOM.randbytes(90_000)
WAV = b"RIFF\x24\x7d\x00\x00WAVEfmt " + RANDOM.randbytes(60_000)
MP3 = b"ID3\x04" + RANDOM.randbytes(60_000)
PDF = b"%PDF-1.7\n" + RANDOM.randbytes(200_000)
MP4 = b"\x00\x00\x00\x20ftypisom" + RANDOM.randbytes(200_000)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{b64(data)}"


def user(*parts: object) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": list(parts)}]}


TEXTS = ["word " * 50, "[1, 2], 3," * 15]
TEXT = {"type": "text", "text": "What is this?"}
HTTP_PICTURE = {"type": "image_url", "image_url": {"url": "https://example.com/cat.jpg", "detail": "high"}}
HTTP_SOURCE = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}

#: By whose SDK: the body, and what it holds beside its text.
BODIES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "text": (user(TEXT), {}),
    "chat, text as a string": ({"model": "m", "messages": [{"role": "user", "content": "hi " * 3000}]}, {}),
    "openai chat, picture by data": (
        user(TEXT, {"type": "image_url", "image_url": {"url": url("image/png", PNG)}}),
        {"pictures": 1},
    ),
    "openai chat, picture by address": (user(TEXT, HTTP_PICTURE), {"pictures": 1}),
    "openai chat, three pictures": (
        user(HTTP_PICTURE, TEXT, HTTP_PICTURE, {"type": "image_url", "image_url": {"url": url("image/jpeg", JPEG)}}),
        {"pictures": 3},
    ),
    "openai chat, sound": (
        user(TEXT, {"type": "input_audio", "input_audio": {"data": b64(WAV), "format": "wav"}}),
        {"sounds": 1},
    ),
    "openai chat, file": (
        user(TEXT, {"type": "file", "file": {"filename": "a.pdf", "file_data": url("application/pdf", PDF)}}),
        {"documents": 1},
    ),
    "openai chat, file by id": (user(TEXT, {"type": "file", "file": {"file_id": "file-1"}}), {"documents": 1}),
    "vllm chat, sound and video": (
        user(
            TEXT,
            {"type": "audio_url", "audio_url": {"url": url("audio/mpeg", MP3)}},
            {"type": "video_url", "video_url": {"url": url("video/mp4", MP4)}},
        ),
        {"sounds": 1, "videos": 1},
    ),
    "openai chat, n": (user(TEXT) | {"n": 4}, {"answers": 4}),
    "openai responses": (
        {
            "model": "m",
            "instructions": "Be brief.",
            "input": [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "What is this?"},
                        {"type": "input_image", "image_url": url("image/png", PNG)},
                        {"type": "input_image", "image_url": "https://example.com/cat.jpg"},
                        {"type": "input_file", "filename": "a.pdf", "file_data": url("application/pdf", PDF)},
                    ],
                }
            ],
        },
        {"pictures": 2, "documents": 1},
    ),
    "openai responses, made picture": (
        {"model": "m", "input": [{"type": "image_generation_call", "id": "ig_1", "result": b64(PNG)}]},
        {"pictures": 1},
    ),
    "anthropic, picture and document": (
        {
            "model": "m",
            "max_tokens": 10,
            **user(
                {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": b64(JPEG)}},
                HTTP_SOURCE,
                {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": b64(PDF)}},
                TEXT,
            ),
        },
        {"pictures": 2, "documents": 1},
    ),
    "completions, token ids": (
        {"model": "m", "prompt": list(range(1000, 3000))},
        {"token_ids": 2000, "text_bytes": 0},
    ),
    "completions, lists of token ids": (
        {"model": "m", "prompt": [[1, 2, 3], [4], [5, 6]]},
        {"token_ids": 6, "inputs": 3, "answers": 3, "text_bytes": 0},
    ),
    "completions, several prompts": (
        {"model": "m", "prompt": ["one, two", 'three ", " four', "five"], "n": 2, "best_of": 3},
        {"inputs": 3, "answers": 9},
    ),
    "vllm completions, embeddings": ({"model": "m", "prompt_embeds": b64(RANDOM.randbytes(20_000))}, {"documents": 1}),
    "embeddings": ({"model": "m", "input": "one text"}, {}),
    "embeddings, many inputs": ({"model": "m", "input": ["some text"] * 2000}, {"inputs": 2000, "answers": 2000}),
    "embeddings, token ids": (
        {"model": "m", "input": [[7] * 100] * 50},
        {"token_ids": 5000, "inputs": 50, "answers": 50, "text_bytes": 0},
    ),
    "sglang, token ids": (
        {"model": "m", "input_ids": [1, 2, 3], "sampling_params": {"n": 2}},
        {"token_ids": 3, "answers": 2, "text_bytes": 0},
    ),
    "sglang, token ids of several prompts": (
        {"model": "m", "input_ids": [[1, 2], [3]], "sampling_params": [{"n": 1}, {"n": 1}]},
        {"token_ids": 3, "inputs": 2, "answers": 2, "text_bytes": 0},
    ),
    "vllm, from tokens to tokens": ({"model": "m", "token_ids": [7] * 99}, {"token_ids": 99, "text_bytes": 0}),
    "vllm, token ids of a prompt": ({"prompt_token_ids": [7] * 99}, {"token_ids": 99, "text_bytes": 0}),
    "detokenize": ({"model": "m", "tokens": [7] * 99}, {"token_ids": 99, "text_bytes": 0}),
    "chat and token ids": (
        {**user(TEXT), "input_ids": [7] * 99},
        {"token_ids": 99, "text_bytes": len(json.dumps(user(TEXT)["messages"]))},
    ),
    "token ids and much beside them": (
        {"prompt": [7] * 99, "unknown": "x" * 5000},
        {"token_ids": 99, "text_bytes": 5000 + 23 - 1024},
    ),
    "llama.cpp, token ids and text mixed": (
        {"prompt": [7] * 50 + [TEXTS[0]] + [8] * 40},
        {"token_ids": 90, "text_bytes": 252},
    ),
    "llama.cpp, a text first": ({"prompt": [TEXTS[0], 7, 8]}, {"token_ids": 2, "text_bytes": 252}),
    "llama.cpp, a text that looks like ids": ({"prompt": [7, TEXTS[1]]}, {"token_ids": 1, "text_bytes": 152}),
    "llama.cpp, prompts of ids and of text": (
        {"prompt": [[7, 8, 9], TEXTS[0]]},
        {"token_ids": 3, "inputs": 2, "answers": 2, "text_bytes": 252},
    ),
    "llama.cpp, prompts of ids and texts mixed": (
        {"prompt": [[7, TEXTS[0], 8], [9], TEXTS[1]], "n_predict": 1},
        {"token_ids": 3, "inputs": 3, "answers": 3, "text_bytes": 404},
    ),
    "llama.cpp, a prompt that begins with a text": (
        {"prompt": [[TEXTS[0], 7], [TEXTS[0]]]},
        {"token_ids": 1, "inputs": 2, "answers": 2, "text_bytes": 504},
    ),
    "embeddings, texts that hold separators": (
        {"model": "m", "input": ['","', ",", '["a", "b"]', "\\", "1"]},
        {"inputs": 5, "answers": 5},
    ),
    "sglang, picture": ({"model": "m", "text": "What is this?", "image_data": b64(PNG)}, {"pictures": 1}),
    "tgi, Markdown picture": (
        {"inputs": f"![]({url('image/png', PNG)})What is this?", "parameters": {"best_of": 2}},
        {"pictures": 1, "answers": 2},
    ),
    "ollama": ({"model": "m", "messages": [{"role": "user", "content": "?", "images": [b64(JPEG)]}]}, {"pictures": 1}),
    "a text about pictures": (user({"type": "text", "text": json.dumps(user(HTTP_PICTURE))}), {}),
    "a text that is one long word": (user({"type": "text", "text": "x" * 20_000}), {}),
    "a tool that makes pictures": (user(TEXT) | {"tools": [{"type": "image_generation"}]}, {}),
}
LINKS = "See [the docs](https://x.y/z), [1] and [2]. " * 400
BODIES |= {
    "a long text with links": ({"model": "m", "messages": [{"role": "user", "content": LINKS}]}, {}),
    "tools before a long text with links": (
        {"model": "m", "tools": [{"type": "function", "function": {"name": "f"}}], **user(TEXT), "system": LINKS},
        {},
    ),
    "a picture by address after a long text with links": (
        {"model": "m", "messages": [{"role": "system", "content": LINKS}, *user(TEXT, HTTP_PICTURE)["messages"]]},
        {"pictures": 1},
    ),
    "a picture after a tool's call and a long text with links": (
        {
            "model": "m",
            "messages": [
                {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function"}]},
                {"role": "tool", "content": LINKS},
                *user({"type": "image_url", "image_url": {"url": url("image/png", PNG[:30_000])}}, TEXT)["messages"],
            ],
        },
        {"pictures": 1},
    ),
}
KINDS = ("token_ids", "pictures", "sounds", "videos", "documents")


def both(body: dict[str, Any], *, pooled: bool = False, separators: tuple[str, str] = (",", ":")) -> Contents:
    """What it holds, read in one go and in steps, which is the same."""
    raw = json.dumps(body, separators=separators).encode()
    small = read(raw, pooled=pooled).contents
    large: Read = run(read_large(raw, pooled=pooled))
    assert large.contents == small
    return small


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")], ids=["compact", "spaced"])
@pytest.mark.parametrize(("body", "expected"), BODIES.values(), ids=BODIES)
def test_contents_of_the_usual_sdks_bodies(
    body: dict[str, Any], expected: dict[str, int], separators: tuple[str, str]
) -> None:
    found = both(body, separators=separators)
    assert {kind: getattr(found, kind) for kind in KINDS if getattr(found, kind)} == {
        kind: count for kind, count in expected.items() if kind in KINDS
    }
    assert found.inputs == expected.get("inputs", 1)
    assert found.answers == expected.get("answers", 1)
    if "text_bytes" in expected and separators == (",", ":"):
        assert abs(found.text_bytes - expected["text_bytes"]) <= 10
    raw = json.dumps(body, separators=separators)
    if any(expected.get(kind) for kind in KINDS) and len(raw) > 20_000:
        assert found.text_bytes < 1500 + len(LINKS) * raw.count(LINKS)  # nothing of the base64
    elif not expected:
        assert found.text_bytes == len(raw)


@pytest.mark.parametrize("escaped", [False, True])
def test_a_picture_of_several_megabytes_is_one_picture(escaped: bool) -> None:
    raw = json.dumps(user({"type": "image_url", "image_url": {"url": url("image/png", PNG * 20)}}, TEXT))
    raw = raw.replace("/", "\\/") if escaped else raw
    found: Read = run(read_large(raw.encode(), pooled=False))
    assert (found.contents.pictures, found.contents.documents) == (1, 0)
    assert found.contents.text_bytes < 500


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")], ids=["compact", "spaced"])
def test_each_of_several_conversations_is_an_input_with_an_answer(separators: tuple[str, str]) -> None:
    """vLLM's `/v1/chat/completions/batch`."""
    talk = [
        {"role": "system", "content": "Be brief, [[please]]."},
        {"role": "user", "content": [{"type": "text", "text": "a, b, c"}, {"type": "text", "text": '"["'}]},
    ]
    for count in (1, 2, 5):
        found = both({"model": "m", "messages": [talk] * count, "stop": ["x", "y"]}, separators=separators)
        assert (found.inputs, found.answers, found.token_ids) == (count, count, 0)
    assert both({"model": "m", "messages": talk, "stop": ["x", "y"]}, separators=separators).answers == 1


@pytest.mark.parametrize(
    "field", ["metadata", "session_id", "conversation", "prompt_cache_key", "safety_identifier", "cache_salt"]
)
@pytest.mark.parametrize("size", [8_000, 1_000_000])
def test_fields_that_no_model_reads_are_no_text(field: str, size: int) -> None:
    talk = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": []}
    value: object = {"user_id": "x" * size} if field == "metadata" else "x" * size
    assert both({**talk, field: value}).text_bytes < 200
    assert both({"model": "m", "messages": talk["messages"], field: value}).text_bytes < 200
    assert both({"model": "m", "prompt": [1, 2, 3], field: value}).text_bytes < 200
    pictures = both({**user(TEXT, HTTP_PICTURE), field: value})
    assert (pictures.text_bytes < 400, pictures.pictures) == (True, 1)


def test_what_looks_like_a_picture_beside_the_prompt_takes_nothing_from_its_text() -> None:
    found = both({**user({"type": "text", "text": "a b " * 5000}), "metadata": {"a": url("image/png", PNG)}})
    assert found.text_bytes > 20_000


def test_pooling_requests_have_no_answers() -> None:
    found = both({"model": "m", "input": ["a", "b"]}, pooled=True)
    assert (found.inputs, found.answers) == (2, 0)


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m", "query": "q" * 100, "documents": ["d" * 10] * 20},
        {"model": "m", "text_1": "q" * 100, "text_2": ["d" * 10] * 20},
    ],
    ids=["rerank", "score"],
)
def test_a_question_is_asked_of_each_document(body: dict[str, Any]) -> None:
    found = both(body, pooled=True)
    assert found.inputs == 20
    assert found.text_bytes == len(json.dumps(body, separators=(",", ":"))) + 19 * 102


def form(*parts: tuple[str, bytes]) -> bytes:
    return (
        b"".join(b"--b\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (h.encode(), v) for h, v in parts)
        + b"--b--"
    )


def of_form(body: bytes, path: str) -> Read:
    return run(read_form(body, b"multipart/form-data; boundary=b", path, pooled=path.startswith("/v1/images/")))


def test_a_sound_to_be_transcribed_is_a_sound_of_any_size() -> None:
    body = form(('name="model"', b"whisper"), ('name="file"; filename="a.wav"', WAV), ('name="prompt"', b"names"))
    found = of_form(body, "/v1/audio/transcriptions")
    assert found.peek.model == "whisper"
    assert found.contents == Contents(12, sounds=1)


def test_pictures_to_be_edited_are_pictures() -> None:
    body = form(
        ('name="image[]"; filename="a.png"', PNG), ('name="mask"; filename="m.png"', PNG), ('name="model"', b"edit")
    )
    assert of_form(body, "/v1/images/edits").contents == Contents(4, pictures=2, answers=0)


def test_a_file_is_never_taken_for_the_model() -> None:
    for named in (
        'name="file"; filename="x; name=model;"',
        'name="file"; filename="a"; x="; name=model "',
        "name=file; filename=model",
    ):
        body = form((named, b"other"), ('name="model"', b"mine"))
        assert of_form(body, "/v1/audio/transcriptions").peek.model == "mine"
        assert of_form(form((named, b"other")), "/v1/audio/transcriptions").peek.model is None


def test_a_form_that_names_its_model_twice_is_refused() -> None:
    with pytest.raises(BadBody, match="more than once"):
        of_form(form(('name="model"', b"one"), ('name="model"', b"two")), "/v1/audio/transcriptions")


def test_an_indented_list_of_token_ids_is_one_too() -> None:
    raw = json.dumps({"model": "m", "input": [[7, 8], [9]]}, indent=12).encode()
    assert read(raw, pooled=True).contents == Contents(0, token_ids=3, inputs=2, answers=0)
