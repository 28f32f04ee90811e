"""Which paths are there: the engines' that pass, built in or added by the setting `paths`, and the gateway's own.

A passing path has a kind, which is what its requests cost an engine, and a field that names the model. A path that ends
in `/*` is every path below it. A path has one meaning: a setting may not give a second one to a path that exists.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from penstock.config import values
from penstock.config.problems import Refused, show
from penstock.config.sections.routing import field_name
from penstock.config.sections.section import Section, setting

PATHS_MAX = 100  # an engine adds a handful
PATH_CHARACTERS_MAX = 200
BELOW = "/*"
_SEGMENTS = re.compile(r"(?:/[A-Za-z0-9_~!$&'()+,;=:@.-]+)+(?:/\*)?", re.ASCII)
_SITE = re.compile(r"\w+://[^/]*/?")
_DOTS = re.compile(r"/\.{1,2}(?:/|$)")


class PathKind(StrEnum):
    """What a request to a path costs an engine."""

    LEASED = "leased"  #: it waits its turn and holds a lease while it is answered
    POOLED = "pooled"  #: the same; its answer is no text: vectors, scores, a picture
    FREE = "free"  #: next to nothing: it goes to the least loaded endpoint at once, without a lease


_LEASED = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
    "/v1/responses/compact",  # a conversation, made shorter
    "/v1/chat/completions/batch",  # vLLM's: several conversations in one request
    "/v1/audio/*",
    "/invocations",  # SageMaker's: a body of any of the others, at vLLM and SGLang
    "/inference/v1/generate",  # vLLM's, from tokens to tokens
    *("/completion", "/completions", "/infill", "/chat/completions"),  # llama.cpp's; OpenAI's have `/v1` before them
    *("/api/chat", "/api/generate"),  # Ollama's
    *("/generate", "/generate_stream"),  # TGI's, and SGLang's
)
_POOLED = (
    *("/v1/embeddings", "/v2/embed", "/encode", "/embedding", "/embeddings", "/api/embed", "/api/embeddings"),
    *("/v1/rerank", "/rerank", "/v2/rerank", "/v1/reranking", "/reranking"),
    *("/v1/score", "/score", "/generative_scoring", "/pooling", "/classify", "/v1/classify"),
    "/v1/moderations",  # without a required model in OpenAI's API
    "/v1/images/*",
)
_FREE = (
    *("/tokenize", "/detokenize", "/v1/tokenize", "/v1/detokenize"),
    *("/v1/messages/count_tokens", "/v1/responses/input_tokens"),
    *(f"/v1/{of}/render" for of in ("chat/completions", "completions", "messages", "responses")),  # to tokens, at vLLM
    *("/v1/chat/completions/derender", "/v1/completions/derender"),  # and back
)
#: The engines' paths that pass without a setting. All of them take POST.
BUILT_IN: dict[str, PathKind] = (
    dict.fromkeys(_LEASED, PathKind.LEASED)
    | dict.fromkeys(_POOLED, PathKind.POOLED)
    | dict.fromkeys(_FREE, PathKind.FREE)
)
#: The gateway's own paths, which ask no engine or are guarded.
OWN = (
    *("/", "/health", "/healthz", "/livez", "/ready", "/readyz", "/version", "/queue", "/usage"),
    *("/metrics", "/autoscale", "/autoscale/*", "/admin", "/admin/*"),
    *("/v1/models", "/v1/models/*", "/api/tags", "/api/show", "/api/version"),
    *("/v1/files", "/v1/files/*", "/v1/batches", "/v1/batches/*"),
    *("/engines", "/sleep", "/wake_up", "/is_sleeping"),
)
#: Answers that engines keep; they go where they were made.
ANSWERS = "/v1/responses/*"


def is_own(path: str) -> bool:
    """Returns True for a path of the gateway itself."""
    return path in _OWN_ALONE or path.startswith(_OWN_BELOW)


_OWN_ALONE = frozenset(path for path in OWN if not path.endswith(BELOW))
_OWN_BELOW = tuple(path.removesuffix("*") for path in OWN if path.endswith(BELOW))


def passing_path(value: object) -> str:
    """Returns a path as requests have it, maybe with `/*` at its end."""
    written = values.text(value)
    if not written.startswith("/"):
        hint = f"write `/{_SITE.sub('', written)[:40]}`"
        raise Refused(f"{show(written)} is not a path: it does not begin with a slash", hint)
    if _DOTS.search(written):
        raise Refused(f"{show(written)} has `.` or `..` in it, so it would lead elsewhere")
    if len(written) > PATH_CHARACTERS_MAX or not _SEGMENTS.fullmatch(written):
        raise Refused(
            f"{show(written)} is not a path: expected names after single slashes, as in `/v1/score`, without a query, "
            f"escapes or a slash at the end; `*` only as the last name; at most {PATH_CHARACTERS_MAX} characters"
        )
    return written


def in_capitals(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


class PathSection(Section):
    """Paths of engines that pass to them, beside the built-in ones (docs/behaviour.md). The same keys, bounds of keys
    and CORS hold on them. See docs/paths.md.
    """

    path: Annotated[str, BeforeValidator(passing_path), values.ValueKind("path")] = Field(
        description="The path, or all paths below one: `/v1/videos/*`."
    )
    method: Annotated[Literal["GET", "POST", "PUT", "PATCH", "DELETE"], BeforeValidator(in_capitals)] = setting(
        "POST", "Its method. A path with several methods is listed once for each."
    )
    kind: Literal["leased", "pooled", "free"] = setting(
        "leased",
        "`leased`: a request waits its turn and holds a slot, as a chat does. `pooled`: the same, and its answer is no "
        "text (vectors, scores, a picture), so none is estimated. `free`: it goes at once to the least loaded endpoint "
        "in service, without a slot, and counts towards no limit.",
    )
    model: Annotated[str, BeforeValidator(field_name), values.ValueKind("field name")] = setting(
        "model",
        "The top-level field of the body that names the model; of a request without a body, the field of the query. "
        "A request without it is for the only model.",
    )
