"""The decoded fields: of a request those for scheduling and the prompt's; of an answer its usage. Values, read by
msgspec.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

NOTHING = msgspec.Raw()
TOKENS_MAX: Final = 2**31  # of one answer: more means nothing, and may not fit a message between processes

Limit = Annotated[int, msgspec.Meta(lt=TOKENS_MAX)]


class Text(msgspec.Struct, gc=False):
    """The fields of a body that its prompt is made of, raw. An absent one is empty."""

    system: msgspec.Raw = NOTHING  #: Anthropic's
    instructions: msgspec.Raw = NOTHING  #: those of OpenAI's responses
    messages: msgspec.Raw = NOTHING
    prompt: msgspec.Raw = NOTHING
    input: msgspec.Raw = NOTHING
    inputs: msgspec.Raw = NOTHING  #: TGI's
    text: msgspec.Raw = NOTHING  #: SGLang's
    input_ids: msgspec.Raw = NOTHING  #: SGLang's
    prompt_token_ids: msgspec.Raw = NOTHING  #: vLLM's
    token_ids: msgspec.Raw = NOTHING  #: vLLM's, from tokens to tokens
    tokens: msgspec.Raw = NOTHING  #: of values that become text again
    query: msgspec.Raw = NOTHING  #: asked of each of
    documents: msgspec.Raw = NOTHING
    text_1: msgspec.Raw = NOTHING  #: vLLM's for scores: compared with each of
    text_2: msgspec.Raw = NOTHING
    tools: msgspec.Raw = NOTHING
    cache_salt: msgspec.Raw = NOTHING
    lora_path: msgspec.Raw = NOTHING  #: SGLang's adapter; elsewhere it is the model


#: Lists of token ids only.
TOKEN_IDS = ("input_ids", "prompt_token_ids", "token_ids", "tokens")
#: Those of a chat that may hold several inputs: a list of conversations is one, too.
OF_CHATS = (*TOKEN_IDS, "messages")
#: Those that may hold several inputs.
SEVERAL = ("prompt", "input", "inputs", "text", "documents", "text_2", *TOKEN_IDS)


class Named(Text, gc=False):
    """The prompt, and the fields that name its session or its user, raw."""

    session_id: msgspec.Raw = NOTHING  #: vLLM's
    conversation: msgspec.Raw = NOTHING
    prompt_cache_key: msgspec.Raw = NOTHING
    metadata: msgspec.Raw = NOTHING  #: Anthropic's has `user_id`
    safety_identifier: msgspec.Raw = NOTHING


#: Names and keys, which no model reads however long they are.
UNREAD = ("cache_salt", *Named.__struct_fields__[len(Text.__struct_fields__) :])


class Fields(Named, gc=False):
    """All that is read of a body, as it came: of any type and size, and built only when it is asked for."""

    model: msgspec.Raw = NOTHING
    stream: msgspec.Raw = NOTHING
    max_tokens: msgspec.Raw = NOTHING
    max_completion_tokens: msgspec.Raw = NOTHING
    max_output_tokens: msgspec.Raw = NOTHING
    n: msgspec.Raw = NOTHING
    best_of: msgspec.Raw = NOTHING
    stream_options: msgspec.Raw = NOTHING
    user: msgspec.Raw = NOTHING
    service_tier: msgspec.Raw = NOTHING
    priority: msgspec.Raw = NOTHING
    parameters: msgspec.Raw = NOTHING  #: TGI's
    sampling_params: msgspec.Raw = NOTHING  #: SGLang's own
    options: msgspec.Raw = NOTHING  #: Ollama's
    n_predict: msgspec.Raw = NOTHING  #: llama.cpp's
    previous_response_id: msgspec.Raw = NOTHING
    background: msgspec.Raw = NOTHING


class Plain(Named, gc=False):
    """The same of a body that is as most are: with values that cost nothing to build, and nothing that few set.

    Other values are read as `Fields`; a `None` here means that few set the field.
    """

    model: str | None = None
    stream: bool | None = None
    max_tokens: Limit | None = None
    max_completion_tokens: Limit | None = None
    max_output_tokens: Limit | None = None
    n: None = None
    best_of: None = None
    stream_options: msgspec.Raw = NOTHING
    user: str | None = None
    service_tier: str | None = None
    priority: int | None = None
    parameters: None = None
    sampling_params: None = None
    options: None = None
    n_predict: None = None
    previous_response_id: str | None = None
    background: None = None


class Own(msgspec.Struct, gc=False):
    """Fields of engines' own APIs in `parameters`, `sampling_params` or `options`."""

    max_tokens: msgspec.Raw = NOTHING
    max_new_tokens: msgspec.Raw = NOTHING
    num_predict: msgspec.Raw = NOTHING
    n: msgspec.Raw = NOTHING
    best_of: msgspec.Raw = NOTHING


class AnswerFields(msgspec.Struct):
    """The fields that mark a whole answer as an error."""

    error: object = None
    kind: object = msgspec.field(default=None, name="object")


class _Details(msgspec.Struct):
    cached_tokens: float | None = None
    reasoning_tokens: float | None = None


class KeptFields(msgspec.Struct):
    """The fields of an answer that its engine keeps, raw."""

    status: msgspec.Raw = NOTHING
    usage: msgspec.Raw = NOTHING


class UsageFields(msgspec.Struct):
    """Usage as OpenAI's chat and completions, OpenAI's responses, Anthropic's messages and Cohere's `meta` have it.

    Some engines write whole numbers as `70.0`.
    """

    prompt_tokens: float | None = None
    completion_tokens: float | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: float | None = None
    total_tokens: float | None = None
    completion_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None
    tokens: UsageFields | None = None
    billed_units: UsageFields | None = None


class SglangMeta(msgspec.Struct):
    """Usage in the `meta_info` of SGLang's own API."""

    prompt_tokens: float | None = None
    completion_tokens: float | None = None
    cached_tokens: float | None = None


class LlamacppTimings(msgspec.Struct):
    """Usage in the `timings` of llama.cpp's own API."""

    prompt_n: float | None = None  #: computed, without those from the cache
    cache_n: float | None = None
    predicted_n: float | None = None


def field_reader(name: str) -> msgspec.json.Decoder[Any]:
    """Decodes one field of an object as raw `value`; empty if it is absent."""
    return msgspec.json.Decoder(
        msgspec.defstruct("Field", [("value", msgspec.Raw, msgspec.field(name=name, default=NOTHING))])
    )
