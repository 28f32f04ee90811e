"""Whose word it is that a model is not there: the engine's, not that of a caller whom it quotes."""

from __future__ import annotations

import json

import pytest

from penstock.engines.base import Engine
from penstock.engines.lmdeploy import LMDEPLOY
from penstock.engines.ollama import OLLAMA
from penstock.engines.openai import OPENAI
from penstock.engines.sglang import SGLANG
from penstock.engines.vllm import VLLM

VLLM_SAYS = "The model `law` does not exist. Valid aliases: base."


def says(message: object, **more: object) -> bytes:
    return json.dumps({"error": {"message": message, "type": "NotFoundError", **more}}).encode()


@pytest.mark.parametrize(
    ("engine", "body"),
    [
        (VLLM, says(VLLM_SAYS, param="model", code=404)),
        (VLLM, json.dumps({"object": "error", "message": "The model `law` does not exist.", "code": 404}).encode()),
        (VLLM, json.dumps({"type": "error", "error": {"type": "not_found_error", "message": VLLM_SAYS}}).encode()),
        (LMDEPLOY, json.dumps({"object": "error", "message": "The model 'law' does not exist.", "code": 404}).encode()),
        (OLLAMA, says("model 'law' not found")),
        (OLLAMA, says('model "law" not found, try pulling it first')),
        (OPENAI, says("The model `law` does not exist or you do not have access to it.", code="model_not_found")),
        (SGLANG, says("anything", code="model_not_found")),
    ],
)
def test_it_reports_a_missing_model(engine: Engine, body: bytes) -> None:
    assert engine.lacks("law", body)
    assert engine.lacks("law", bytearray(body))


@pytest.mark.parametrize(
    "body",
    [
        b'{"detail":"Not Found"}',
        b"",
        b"<html>",
        b"[" * 100_000,
        b"\xff",
        b"[]",
        b'"The model `law` does not exist."',
        b'{"error":"The model `law` does not exist."}',
        says(None),
        says("The model `lawyer` does not exist.", code=404),
        says("Response with id 'resp_The model `law` does not exist' not found.", code=404),
        says("Not here. The model `law` does not exist.", code=404),
        says("The model `law", code=404),
    ],
)
def test_it_says_something_else(body: bytes) -> None:
    assert not VLLM.lacks("law", body)
    assert not VLLM.lacks("law", bytearray(body))
