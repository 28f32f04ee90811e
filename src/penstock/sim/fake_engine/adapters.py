"""LoRA adapters, loaded and unloaded at runtime, each served as a model.

Paths and answers are vLLM's with `VLLM_ALLOW_RUNTIME_LORA_UPDATING`. An adapter answers like the model, but has its own
cached blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.sim.fake_engine.calls import CallError, bad_request
from penstock.sim.fake_engine.http import EngineConnection, HttpRequest


class _Named(msgspec.Struct):
    lora_name: str
    lora_path: str = ""


class Adapters:
    """The loaded adapters, by name."""

    def __init__(self) -> None:
        self._paths: dict[str, str] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._paths

    def listed(self, model: dict[str, object]) -> Iterator[dict[str, object]]:
        """Yields the adapters' entries in a model list, made from the entry of their `model`."""
        for name, path in self._paths.items():
            yield model | {"id": name, "root": path, "parent": model["id"], "max_model_len": None}

    def load(self, request: HttpRequest, connection: EngineConnection) -> None:
        adapter = _read(request.body)
        self._paths[adapter.lora_name] = adapter.lora_path
        connection.respond(200, f"Success: LoRA adapter '{adapter.lora_name}' added successfully.".encode())

    def unload(self, request: HttpRequest, connection: EngineConnection) -> None:
        name = _read(request.body).lora_name
        if self._paths.pop(name, None) is None:
            raise CallError(404, "NotFoundError", f"The lora adapter '{name}' cannot be found.")
        connection.respond(200, f"Success: LoRA adapter '{name}' removed successfully.".encode())


def _read(body: bytes) -> _Named:
    try:
        return msgspec.json.decode(body, type=_Named)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"1 validation error: {error}") from error
