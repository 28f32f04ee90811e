"""Coding agents at their engines: the requests of Claude Code 2.1.197, Codex 0.171.0 and OpenCode 1.18.33, as recorded.

Headers and fields are those that the clients sent before `penstock serve` (docs/agents.md); long texts are cut.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from penstock.gateway.identity.callers import key_hash
from tests.gateway.conftest import CHAT, Answer, World, request
from tests.gateway.openai.test_usage import SSE, chunked
from tests.gateway.proxy.test_engine_paths import whole
from tests.gateway.proxy.test_heartbeat import Gated, gated

SESSION = "01a219b4-a600-7c32-9a38-ba268e25e3e8"


class Client:
    """What one client sends, and what an engine answers."""

    def __init__(
        self,
        path: str,
        headers: dict[str, str],
        body: dict[str, Any],
        events: list[bytes],
        tokens: tuple[int, int, int],
    ) -> None:
        self.path = path
        self.headers = {**headers, "accept-encoding": "gzip, deflate, br, zstd", "content-type": "application/json"}
        self.body = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        self.events = events
        self.tokens = tokens  #: of the prompt, of it cached, of the answer

    def request(self) -> bytes:
        return request("POST", self.path, self.body, self.headers)


def named(*events: dict[str, Any]) -> list[bytes]:
    return [b"event: %b\ndata: %b\n\n" % (event["type"].encode(), json.dumps(event).encode()) for event in events]


def unnamed(*events: dict[str, Any]) -> list[bytes]:
    return [*(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events), b"data: [DONE]\n\n"]


MARKED = {"cache_control": {"type": "ephemeral"}}
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
CLAUDE = Client(
    "/v1/messages?beta=true",
    {
        "Authorization": "Bearer pk-agents",
        "User-Agent": "claude-cli/2.1.197 (external, sdk-cli)",
        "X-Claude-Code-Session-Id": SESSION,
        "X-Stainless-Lang": "js",
        "X-Stainless-Retry-Count": "0",
        "X-Stainless-Timeout": "600",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
        "anthropic-dangerous-direct-browser-access": "true",
        "anthropic-version": "2023-06-01",
        "x-app": "cli",
    },
    {
        "model": "sim",
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "<system-reminder>…"}, {"type": "text", "text": "Hi"}],
            },
            {"role": "system", "content": "Available agent types for the Agent tool: …"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "A listing is wanted.", "signature": ""},
                    {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}},
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "a.py\n", **MARKED}],
            },
        ],
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.1c0; cc_entrypoint=sdk-cli;"},
            {"type": "text", "text": "You are a Claude agent …", **MARKED},
        ],
        "tools": [{"name": "Bash", "description": "Runs a command", "input_schema": SCHEMA}],
        "metadata": {"user_id": json.dumps({"device_id": "34cd", "account_uuid": "", "session_id": SESSION})},
        "max_tokens": 32000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": True,
    },
    named(
        {
            "type": "message_start",
            "message": {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": "sim",
                "content": [],
                "stop_reason": None,
                "usage": {"input_tokens": 12, "cache_read_input_tokens": 8, "output_tokens": 0},
            },
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "So ü"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_use", "id": "toolu_2", "name": "Bash", "input": {}},
        },
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": '{"command": "cat a.py"}'},
        },
        {"type": "content_block_stop", "index": 1},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {"output_tokens": 9},
        },
        {"type": "message_stop"},
    ),
    (20, 8, 9),
)
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "exec_command", "arguments": '{"cmd":"ls"}'}
CODEX = Client(
    "/v1/responses",
    {
        "x-codex-beta-features": "remote_compaction_v2",
        "x-codex-window-id": f"{SESSION}:0",
        "x-codex-turn-metadata": json.dumps({"session_id": SESSION, "request_kind": "turn", "sandbox": "seccomp"}),
        "x-client-request-id": SESSION,
        "session-id": SESSION,
        "thread-id": SESSION,
        "accept": "text/event-stream",
        "authorization": "Bearer pk-agents",
        "originator": "codex_exec",
        "user-agent": "codex_exec/0.171.0 (Debian 12.0.0; x86_64) xterm (codex_exec; 0.171.0)",
    },
    {
        "model": "sim",
        "stream": True,
        "input": [
            {
                "type": "message",
                "id": "msg_1",
                "role": "developer",
                "content": [{"type": "input_text", "text": "You …"}],
            },
            {"type": "message", "id": "msg_2", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
            CALL,
            {"type": "function_call_output", "call_id": "call_1", "output": "a.py\n"},
        ],
        "tools": [
            {"type": "function", "name": "exec_command", "description": "", "strict": False, "parameters": SCHEMA},
            {"type": "namespace", "name": "multi_agent_v1", "description": "", "tools": []},
            {"type": "web_search", "external_web_access": False},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": SESSION,
        "client_metadata": {"session_id": SESSION, "x-codex-window-id": f"{SESSION}:0"},
    },
    named(
        {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "usage": None}},
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning", "id": "rs_2"}},
        {"type": "response.reasoning_text.delta", "item_id": "rs_2", "output_index": 0, "delta": "So ü"},
        {"type": "response.output_item.done", "output_index": 1, "item": CALL},
        {
            "type": "response.completed",
            "response": {
                "id": "resp_1",
                "status": "completed",
                "output": [CALL],
                "usage": {
                    "input_tokens": 20,
                    "input_tokens_details": {"cached_tokens": 8},
                    "output_tokens": 9,
                    "output_tokens_details": {"reasoning_tokens": 4},
                    "total_tokens": 29,
                },
            },
        },
    ),
    (20, 8, 9),
)


def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish_reason}]
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "sim", "choices": choices}


OPENCODE = Client(
    CHAT,
    {
        "Authorization": "Bearer pk-agents",
        "User-Agent": "opencode/1.18.33 ai-sdk/provider-utils/4.0.23 runtime/bun/1.3.14",
        "x-session-affinity": "ses_de64b1622ffeZ1OB3rBH6Fsmqu",
        "x-session-id": "ses_de64b1622ffeZ1OB3rBH6Fsmqu",
        "Accept": "*/*",
    },
    {
        "model": "sim",
        "max_tokens": 1000,
        "messages": [
            {"role": "system", "content": "You are OpenCode …"},
            {"role": "user", "content": "Hi"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": '{"command":"ls"}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "a.py\n"},
        ],
        "tools": [{"type": "function", "function": {"name": "bash", "description": "", "parameters": SCHEMA}}],
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    unnamed(
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning_content": "So ü"}),
        chunk({"tool_calls": [{"index": 0, "id": "call_2", "function": {"name": "bash", "arguments": '{"command"'}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": ':"cat a.py"}'}}]}),
        chunk({}, "tool_calls"),
        {
            "id": "chatcmpl-1",
            "choices": [],
            "usage": {
                "prompt_tokens": 20,
                "completion_tokens": 9,
                "total_tokens": 29,
                "prompt_tokens_details": {"cached_tokens": 8},
            },
        },
    ),
    (20, 8, 9),
)
CLIENTS = pytest.mark.parametrize(
    "its", [CLAUDE, CODEX, OPENCODE], ids=["claude-code", "codex", "opencode"], scope="module"
)


@CLIENTS
@pytest.mark.parametrize("cut", [None, 1, 7, 100], ids=lambda cut: f"in pieces of {cut}" if cut else "by events")
async def test_requests_and_streams_pass_byte_for_byte_and_are_counted(
    world: World, its: Client, cut: int | None
) -> None:
    answer = b"".join(its.events)
    pieces = its.events if cut is None else [answer[at : at + cut] for at in range(0, len(answer), cut)]
    endpoint, requests = await world.scripted(SSE, *chunked(pieces)[1:])
    await world.gateway(endpoints=[{**endpoint, "slots": 1}])
    got = await (await world.client(its.request())).answer()
    assert (got.status, got.header("content-type")) == (200, "text/event-stream")
    assert got.body == answer
    head, _, body = requests[0].partition(b"\r\n\r\n")
    assert head.startswith(f"POST {its.path} HTTP/1.1\r\n".encode())
    assert body == its.body
    for name, value in its.headers.items():
        if name.lower() not in ("accept-encoding", "content-type"):
            assert f"{name}: {value}".encode() in head.split(b"\r\n"), name
    prompt, cached, completion = its.tokens
    for kind, count in (("prompt", prompt), ("cached_prompt", cached), ("completion", completion)):
        assert await world.metric("penstock_tokens_total", kind=kind) == count, kind
    assert await world.metric("penstock_requests_total", outcome="completed") == 1


def told(its: Client, answer: Answer) -> tuple[str, str]:
    """The kind and the code of an error, in the shape that this client's API has."""
    page = answer.json()
    if its is CLAUDE:
        assert page.keys() == {"type", "error"}
        assert page["type"] == "error"
        assert page["error"].keys() == {"type", "message", "code"}
    else:
        assert page.keys() == {"error"}
        assert page["error"].keys() == {"message", "type", "param", "code"}
    assert answer.header("x-penstock-reason") == page["error"]["code"]
    return page["error"]["type"], page["error"]["code"]


@CLIENTS
async def test_a_limit_is_a_429_that_each_retries_after_what_it_is_told(world: World, its: Client) -> None:
    endpoint, _ = await world.scripted(SSE, *chunked(its.events)[1:])
    tenant = {"name": "agents", "keys": [key_hash("pk-agents")], "limits": {"requests_per_minute": 2}}
    await world.gateway(endpoints=[{**endpoint, "slots": 1}], tenants=[tenant], identity={"require_key": True})
    answers = [await (await world.client(its.request())).answer() for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert told(its, answers[2]) == ("rate_limit_error", "tenant_limit")
    assert 1 <= int(answers[2].header("retry-after") or 0) <= 60
    assert answers[2].header("x-should-retry") is None


@CLIENTS
async def test_a_wrong_key_and_a_wrong_model_are_not_for_trying_again(world: World, its: Client) -> None:
    endpoint, requests = await world.scripted(SSE, *chunked(its.events)[1:])
    await world.gateway(
        endpoints=[endpoint],
        identity={"require_key": True, "made_keys": False},
        tenants=[
            {"name": "others", "keys": [key_hash("pk-others")]},
            {"name": "agents", "keys": [{"hash": key_hash("pk-agents"), "models": ["other"]}]},
        ],
    )
    kinds = ("permission_error", "authentication_error") if its is CLAUDE else ("invalid_request_error",) * 2
    forbidden = await (await world.client(its.request())).answer()
    assert (forbidden.status, told(its, forbidden)) == (403, (kinds[0], "forbidden"))
    unknown = its.request().replace(b"pk-agents", b"pk-nobody")
    unauthorized = await (await world.client(unknown)).answer()
    assert (unauthorized.status, told(its, unauthorized)) == (401, (kinds[1], "unauthorized"))
    for answer in (forbidden, unauthorized):
        assert (answer.header("retry-after"), answer.header("x-should-retry")) == (None, "false")
    assert requests == []


@CLIENTS
async def test_without_an_engine_it_is_a_503_with_a_time_to_come_back(world: World, its: Client) -> None:
    engine = await world.engine()
    await world.gateway(queue={"max_wait": "100ms"})
    await engine.close()
    await world.until(lambda: world.picture().endpoints[0].state == "down")
    answer = await (await world.client(its.request())).answer()
    assert answer.status == 503
    assert told(its, answer) == ("overloaded_error" if its is CLAUDE else "server_error", "no_endpoint")
    assert int(answer.header("retry-after") or 0) >= 1


async def waits(world: World, its: Client, **queue: str) -> tuple[Gated, Any, bytes]:
    """A request that waits with heartbeats, behind one that holds the only slot; and what it was told so far."""
    engine = await gated(world, *(SSE + b"".join(chunked(its.events)[1:]) for _ in range(2)))
    await world.gateway(endpoints=[engine.settings], queue={"heartbeat_after": "30ms", **queue})
    first = world.soon((await world.client(its.request())).answer())
    await world.until(lambda: engine.requests)
    client = await world.client(its.request())
    head = await client.head()
    assert (head.status, head.header("content-type")) == (200, "text/event-stream; charset=utf-8")
    return engine, (client, first), await client.piece()


@CLIENTS
async def test_a_waiting_stream_is_kept_alive_by_what_the_api_has_for_that(world: World, its: Client) -> None:
    engine, (client, first), beat = await waits(world, its)
    assert beat.startswith(b": queued position=1")
    assert (b"\nevent: ping\n" in beat) is (its is CLAUDE)
    engine.go.set()
    assert (await first).body == b"".join(its.events)
    assert (await client.whole()).endswith(b"".join(its.events)), "and then the engine's bytes"


@CLIENTS
async def test_what_times_out_after_heartbeats_ends_with_an_error_event_and_without_the_end_of_an_answer(
    world: World, its: Client
) -> None:
    """Codex and OpenCode take that for a broken stream and ask again."""
    engine, (client, first), _ = await waits(world, its, max_wait="300ms")
    last = (await client.whole()).split(b"\n\n")[-2]
    data = json.loads(last.partition(b"data: ")[2])
    assert last.startswith(b"event: error\n") is (its is CLAUDE)
    assert (data["error"]["type"], data["error"]["code"]) == ("rate_limit_error", "queue_timeout")
    engine.go.set()
    assert (await first).status == 200


async def test_tokens_are_counted_while_all_slots_are_taken(world: World) -> None:
    """Claude Code asks before it sends a large file; vLLM counts with its own tokenizer."""
    engine = await gated(world, whole({"input_tokens": 31}), SSE + b"".join(chunked(CLAUDE.events)[1:]))
    engine.go.set()
    await world.gateway(endpoints=[engine.settings], queue={"max_requests": 0})
    body = {name: value for name, value in json.loads(CLAUDE.body).items() if name not in ("stream", "max_tokens")}
    counted = await world.ask(path="/v1/messages/count_tokens?beta=true", body=body, headers=CLAUDE.headers)
    assert (counted.status, counted.json()) == (200, {"input_tokens": 31})
    assert json.loads(engine.requests[0].partition(b"\r\n\r\n")[2]) == body
    assert await world.metric("penstock_dispatches_total") == 0


async def test_codex_compacts_where_the_engine_can(world: World) -> None:
    """Only with a provider named `OpenAI`; others' conversations are made shorter by a usual turn."""
    compacted = {"object": "response.compaction", "output": [], "usage": {"input_tokens": 20, "output_tokens": 3}}
    endpoint, requests = await world.scripted(whole(compacted))
    await world.gateway(endpoints=[{**endpoint, "slots": 1}])
    answers = await asyncio.gather(
        *(world.ask(path="/v1/responses/compact", body=CODEX.body, headers=CODEX.headers) for _ in range(2))
    )
    assert [answer.json() for answer in answers] == [compacted] * 2
    assert [data.partition(b"\r\n\r\n")[2] for data in requests] == [CODEX.body] * 2
    assert await world.metric("penstock_dispatches_total") == 2
