"""What is read out of bodies and metrics pages, and what an outcome looks like from outside; no sockets."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.values.catalogue import Reason
from penstock.gateway.openai import errors
from penstock.gateway.openai.answers.stream_end import cut_off, ended_well, json_cut_off, tells_error
from penstock.gateway.openai.body import BadBody, Read, peek, read_large
from penstock.gateway.openai.errors import Api
from penstock.gateway.openai.forms import read_form
from penstock.gateway.openai.routes import Paths, api_of
from penstock.gateway.openai.splice import Spliced, remove_in_bytes, set_in_bytes
from penstock.gateway.proxy.headers import request_headers, response_headers
from tests.gateway.conftest import run

TAIL_BYTES = 4 * 1024

CHAT = "/v1/chat/completions"

# --- bodies ----------------------------------------------------------------------------------------------------

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
keys = st.one_of(names, st.sampled_from(["model", "stream", "mod\\el", '"model"', "model\u0000", "Model"]))
values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), names),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=12,
)


def replace_model(raw: bytes, model: str) -> bytes:
    return set_in_bytes(raw, {"model": msgspec.json.encode(model)})


def written(body: object) -> bytes:
    assert isinstance(body, Spliced)
    whole = b"".join(body.pieces())
    assert len(whole) == len(body)
    return whole


separators = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:\r\n ")])


@given(st.dictionaries(keys, values, max_size=5), names, names, separators, st.booleans())
def test_replacing_the_model_is_replacing_it_in_the_json(
    body: dict[str, Any], old: str, new: str, separator: tuple[str, str], plain: bool
) -> None:
    before = body | {"model": old}
    raw = json.dumps(before, separators=separator, ensure_ascii=plain).encode()
    assert peek(raw).model == old
    assert json.loads(replace_model(raw, new)) == before | {"model": new}


@given(st.dictionaries(keys, values, max_size=5), names, separators)
def test_replacing_a_model_by_itself_changes_no_byte_but_its_own_spelling(
    body: dict[str, Any], name: str, separator: tuple[str, str]
) -> None:
    raw = json.dumps(body | {"model": name}, separators=separator, ensure_ascii=False).encode()
    again = replace_model(replace_model(raw, "x"), name)
    assert json.loads(again) == json.loads(raw)
    assert len(again) == len(replace_model(raw, "x")) - len('"x"') + len(json.dumps(name, ensure_ascii=False).encode())


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"model":"a"}', b'{"model":"b"}'),
        (b' {\n"model"\t: "a" }\n', b' {\n"model"\t: "b" }\n'),
        (b'{"mod\\u0065l":"\\u0061"}', b'{"mod\\u0065l":"b"}'),
        (b'{"x":{"model":"a"},"model":"a","y":["model"]}', b'{"x":{"model":"a"},"model":"b","y":["model"]}'),
        (b'{"y":[{"model":"a"}],"model":"a"}', b'{"y":[{"model":"a"}],"model":"b"}'),
        (b'{"x":"\\"model\\":\\"a\\"","model":"a"}', b'{"x":"\\"model\\":\\"a\\"","model":"b"}'),
        (b'{"model":"a","model":"a"}', b'{"model":"b","model":"b"}'),
    ],
)  # fmt: skip
def test_only_the_top_level_model_is_replaced(raw: bytes, expected: bytes) -> None:
    assert peek(raw).model == "a"
    assert replace_model(raw, "b") == expected


@pytest.mark.parametrize("other", [b"7", b"null", b"-1.5e3", b'{"model":"a"}', b'[{"x":"]"}]', b'"z"'])
def test_a_model_that_is_given_twice_ends_as_the_one_that_was_meant(other: bytes) -> None:
    raw = b'{"model":%b,"model":"a","x":1}' % other
    assert peek(raw).model == "a", "the last one counts, as with every JSON reader"
    assert json.loads(replace_model(raw, "b")) == {"model": "b", "x": 1}


@given(st.lists(st.tuples(st.sampled_from(["model", "x", "y"]), values), max_size=6), separators)
def test_of_fields_that_are_given_again_each_ends_where_it_ends(
    pairs: list[tuple[str, Any]], separator: tuple[str, str]
) -> None:
    between, colon = separator
    members = [json.dumps(name) + colon + json.dumps(value) for name, value in [*pairs, ("model", "a")]]
    raw = ("{" + between.join(members) + "}").encode()
    before = json.loads(raw, object_pairs_hook=list)
    after = json.loads(replace_model(raw, "b"), object_pairs_hook=list)
    assert after == [(name, "b" if name == "model" else value) for name, value in before]


@pytest.mark.parametrize("value", [b"1" + b"0" * 5000, b"[" * 400 + b"]" * 400, b'{"\\u00fc":"\xc3\xbc]"}', b"-0.0"])
def test_a_value_of_any_kind_that_is_given_again_is_passed_over(value: bytes) -> None:
    raw = b'{"x":%b,"model":"a","x":1}' % value
    assert replace_model(raw, "b") == b'{"x":%b,"model":"b","x":1}' % value


def test_a_field_among_very_many_is_set() -> None:
    many = {f"k{n}": n for n in range(20_000)}
    raw = json.dumps({"model": "a", **many}).encode()
    assert json.loads(replace_model(raw, "b")) == {"model": "b", **many}


def _refusal(raw: bytes) -> str:
    with pytest.raises(BadBody) as refused:
        run(read_large(raw, pooled=False))
    return str(refused.value)


@pytest.mark.timing
@pytest.mark.parametrize(
    "field",
    [
        lambda: '"x":[' + '{"a":["]"]},' * 400_000 + "0]",
        lambda: '"x":1,' + ",".join(['"model":"a"'] * 300_000),
        lambda: ",".join([f'"{n}":1' for n in range(1_500_000)]),
    ],
    ids=["small pieces", "one name", "many names"],
)
def test_a_field_of_a_large_body_is_set_without_holding_up_everybody(field: Callable[[], str]) -> None:
    raw = ('{"model":"a",' + field() + "}").encode()
    assert min(_longest_step_s(raw) for _ in range(3)) < 0.02


def _longest_step_s(raw: bytes) -> float:
    """CPU time of the longest turn of the loop in which a body is read."""
    steps, longest_s = read_large(raw, pooled=False), 0.0
    gc.disable()  # what other tests have left is not to be looked through in here
    try:
        while True:
            begun_s = time.thread_time()
            next(steps)
            longest_s = max(longest_s, time.thread_time() - begun_s)
    except BadBody:
        assert "more than 10000 fields" in _refusal(raw)
    except StopIteration as done:
        replaced = written(done.value.body.with_model("b"))
        assert peek(replaced).model == "b"
    finally:
        gc.enable()
    return longest_s


def test_colons_of_a_prompt_are_no_fields() -> None:
    raw = json.dumps({"messages": [{"role": "user", "content": "a: b, " * 200_000}], "model": "a"}).encode()
    assert replace_model(raw, "b") == raw[:-3] + b'b"}'


@given(st.dictionaries(keys, values, max_size=4), st.sampled_from(["priority", "model"]), separators)
def test_setting_a_field_is_setting_it_in_the_json(body: dict[str, Any], name: str, separator: tuple[str, str]) -> None:
    raw = b" " + json.dumps(body, separators=separator).encode()
    assert json.loads(set_in_bytes(raw, {name: b"[7]"})) == body | {name: [7]}


@given(
    st.dictionaries(keys, values, max_size=4),
    st.lists(st.sampled_from(["priority", "model", "stream"]), unique=True),
    separators,
)
def test_several_fields_are_set_at_once(body: dict[str, Any], names: list[str], separator: tuple[str, str]) -> None:
    raw = json.dumps(body, separators=separator).encode()
    assert json.loads(set_in_bytes(raw, dict.fromkeys(names, b"[7]"))) == body | {key: [7] for key in names}


@given(st.dictionaries(keys, values, max_size=4), st.sampled_from(["priority", "model"]), separators)
def test_removing_a_field_is_removing_it_from_the_json(
    body: dict[str, Any], name: str, separator: tuple[str, str]
) -> None:
    raw = b" " + json.dumps(body, separators=separator).encode()
    left = {key: value for key, value in body.items() if key != name}
    assert json.loads(remove_in_bytes(raw, name)) == left
    twice = b"{" + b",".join([b'"priority":1'] * 2 + [json.dumps(body).encode()[1:-1] or b'"x":1']) + b"}"
    assert "priority" not in json.loads(remove_in_bytes(twice, "priority"))


@given(
    st.dictionaries(keys, values, max_size=4),
    st.lists(st.sampled_from(["model", "priority", "x"]), unique=True),
    st.sampled_from(["priority", "model", "x"]),
    separators,
)
def test_of_a_large_body_the_same_fields_are_set_and_removed(
    body: dict[str, Any], names: list[str], gone: str, separator: tuple[str, str]
) -> None:
    body.pop("model", None)
    raw = json.dumps({"a": 1} | body, separators=separator).encode()
    large = run(read_large(b'{"model":"m",' + raw[1:], pooled=False)).body
    assert isinstance(large, Spliced)
    held = {"model": "m", "a": 1} | body
    assert json.loads(written(large.with_fields(dict.fromkeys(names, b"[7]")))) == held | {n: [7] for n in names}
    assert json.loads(written(large.without(gone))) == {name: value for name, value in held.items() if name != gone}


def test_peeked_fields() -> None:
    assert peek(b'{"model":"a","stream":true,"max_tokens":7}').output_tokens_max == 7
    assert peek(b'{"model":"a","max_tokens":7,"max_completion_tokens":9}').output_tokens_max == 9
    assert peek(b'{"model":"a","stream":true}').stream is True
    for odd in (b'"maybe"', b"2", b"null", b"[]"):
        assert peek(b'{"model":"a","stream":%b,"max_tokens":%b}' % (odd, odd)).stream is False
    assert peek(b'{"model":"a","max_tokens":-1}').output_tokens_max is None
    assert peek(b"{}").model is None


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        is_object = isinstance(json.loads(raw), dict)
    except ValueError:
        is_object = False
    if is_object:
        assert peek(raw).model is None
    else:
        with pytest.raises(BadBody):
            peek(raw)


def form(body: bytes, kind: bytes) -> Read:
    return run(read_form(body, kind, "/v1/audio/transcriptions", pooled=False))


FORMS = [b"multipart/form-data; boundary=b", b'multipart/form-data;boundary="b b"']


@given(st.binary(max_size=80), st.sampled_from(FORMS))
def test_any_form_is_read_or_refused(raw: bytes, kind: bytes) -> None:
    field = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n--b--' % raw
    for body in (raw, b"--b\r\n" + raw, field):
        try:
            found = form(body, kind)
        except BadBody:
            continue
        if found.peek.model is not None:
            assert isinstance(found.body, Spliced)
            assert form(written(found.body.with_model("other")), kind).peek.model == "other"


# --- the wire --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", Reason)
@pytest.mark.parametrize("api", Api)
def test_every_reason_has_its_answer_in_every_shape(api: Api, reason: Reason) -> None:
    status, headers, body = errors.refusal(api, reason, "words", param="p", retry_after_s=3.2)
    assert 400 <= status < 600
    assert (b"x-penstock-reason", reason.encode()) in headers
    assert (b"retry-after", b"4") in headers
    drops = (status in (429, 503) and reason is not Reason.IDENTITY_UNAVAILABLE) or reason is Reason.CANCELLED
    assert (b"x-llm-d-request-dropped-reason" in dict(headers)) is drops
    error = json.loads(body)
    if api is Api.OPENAI:
        kinds = {4: "invalid_request_error", 5: "server_error"}
        kind = "rate_limit_error" if status == 429 else kinds[status // 100]
        assert error == {"error": {"message": "words", "type": kind, "param": "p", "code": reason}}
    elif api is Api.ANTHROPIC:
        assert error["type"] == "error"
        assert error["error"]["message"] == "words"
        assert error["error"]["code"] == reason
    else:
        assert (error["error"], error["code"]) == ("words", reason)
    end = b"}\n" if api is Api.OLLAMA else b"}\n\n"  # a line, where streams are lines; else an event
    assert errors.error_event(api, reason, "words").endswith(end)


def test_a_dropped_request_has_the_reason_in_llm_ds_words() -> None:
    def why(reason: Reason) -> bytes | None:
        return dict(errors.refusal(Api.OPENAI, reason)[1]).get(b"x-llm-d-request-dropped-reason")

    assert why(Reason.QUEUE_FULL) == why(Reason.OVERLOAD) == b"rejected-saturated"
    assert why(Reason.QUEUE_TIMEOUT) == b"rejected-ttl-expired"
    assert why(Reason.NO_ENDPOINT) == b"rejected-no-endpoints"
    assert why(Reason.DRAINING) == b"rejected-shutting-down"
    assert why(Reason.UPSTREAM_ERROR) is None


@given(st.floats(min_value=-1e9, max_value=1e9))
def test_every_client_library_obeys_the_retry_after(seconds: float) -> None:
    name, value = errors.retry_after(seconds)
    assert name == b"retry-after"
    assert 1 <= int(value) <= 86_400
    assert int(value) >= min(seconds, 86_400), "who comes back then does not come too early"


def test_paths() -> None:
    routes = Paths()
    assert routes.get("/v1/audio/speech") is not None
    assert routes.get("/v1/images/../files") is None
    assert routes.get("/v1/nothing") is None
    assert api_of("/v1/messages/what") is Api.ANTHROPIC
    assert api_of("/generate_stream") is Api.TGI


def test_headers_of_one_hop_stay_on_it() -> None:
    sent = [
        (b"Connection", b"close, X-A"),
        (b"x-a", b"1"),
        (b"X-B", b"2"),
        (b"TE", b"x"),
        (b"X-Request-Id", b"old"),
    ]
    kept = request_headers(sent, api_key=None, request_id=b"new", inflated=False)
    assert kept == [(b"X-B", b"2"), (b"x-request-id", b"new")]
    assert response_headers(sent) == [(b"X-B", b"2")]
    mine = [(b"Authorization", b"Bearer mine"), (b"X-Api-Key", b"mine")]
    keyed = request_headers(mine, api_key="k", request_id=b"r", inflated=False)
    assert keyed == [(b"x-request-id", b"r"), (b"authorization", b"Bearer k")]


# --- how streams end -------------------------------------------------------------------------------------------

TOKEN = b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":null}]}\n\n'
STOP = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"total_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"
QUOTED = b'data: {"choices":[{"delta":{"content":"\\ndata: {\\"error\\": \\"finish_reason\\":\\"abort\\""}}]}\n\n'


@pytest.mark.parametrize(
    ("path", "tail", "well"),
    [
        (CHAT, TOKEN + STOP + DONE, True),
        (CHAT, TOKEN + STOP + USAGE + DONE, True),
        (CHAT, TOKEN + QUOTED + STOP + DONE, True),
        (CHAT, TOKEN + STOP.replace(b'":"', b'": "') + DONE, True),
        (CHAT, TOKEN + DONE, True),
        (CHAT, TOKEN + USAGE, True),
        (CHAT, TOKEN + QUOTED + DONE, True),
        (CHAT, TOKEN + STOP.replace(b"stop", b"abort") + DONE, False),
        (CHAT, TOKEN + b'data: {"error":{"message":"x"}}\n\n' + DONE, False),
        (CHAT, b'data: {"object":"error","message":"x"}\n\n' + DONE, False),
        (CHAT, STOP, True),
        (CHAT, b"", True),
        ("/v1/messages", b"event: message_stop\ndata: {}\n\n" + DONE, True),
        ("/v1/messages", b'event: error\ndata: {"type":"error"}\n\n', False),
        ("/v1/responses", b"event: response.completed\ndata: {}\n\n", True),
        ("/v1/responses", b"event: response.failed\ndata: {}\n\n", False),
    ],
)
def test_done_does_not_prove_success(path: str, tail: bytes, well: bool) -> None:
    assert ended_well(path, tail) is well


def test_the_tail_has_room_for_many_choices() -> None:
    assert ended_well(CHAT, (TOKEN * 1000 + STOP * 32 + USAGE + DONE)[-TAIL_BYTES:])


@pytest.mark.parametrize(
    ("tail", "is_cut"),
    [
        (TOKEN + b'data: {"a":', True),
        (b"data: x", True),
        (TOKEN + b"data: [DONE", True),
        (TOKEN + b"data: [DONE]", False),
        (TOKEN + b'data: {"a":1}', False),
        (TOKEN + b'data: {"a":1}\r', False),
        (TOKEN + b"data:", False),
        (TOKEN + b"event: x", False),
        (TOKEN + b"data: x\n", False),
        (b"", False),
    ],
)
def test_a_last_event_without_an_end_is_cut_off(tail: bytes, is_cut: bool) -> None:
    assert cut_off(tail) is is_cut


def test_json_is_cut_off_at_each_byte_but_its_last() -> None:
    text = b' {"a": [1, 2.5, {"b": "c\\u00e9", "n": null}], "x": "\xc3\xb6"}'
    assert all(json_cut_off(text[:end]) for end in range(2, len(text)))
    assert not json_cut_off(text)
    assert not json_cut_off(text + b"\r\n")


@pytest.mark.parametrize(
    ("tail", "tells"),
    [
        (b'data: {"error":{"message":"x"}}\n\n', True),
        (TOKEN + b'data:{"object":"error"}\n\n', True),
        (TOKEN + b'data:{"object": "error"}\n\n', True),
        (TOKEN + b"event: response.failed\n", True),
        (TOKEN + b"event:error\r\n", True),
        (TOKEN + b'data: {"content":"error, and what failed"}\n\n', False),
        (TOKEN + QUOTED, False),
        (TOKEN + DONE, False),
    ],
)
def test_only_a_separate_event_is_an_error(tail: bytes, tells: bool) -> None:
    assert tells_error(tail) is tells
