"""LoRA adapters, each served as a model: listed at the start or at runtime, and a few of them in memory.

Paths and answers are vLLM's with `VLLM_ALLOW_RUNTIME_LORA_UPDATING`. An adapter answers like the model, but has its own
cached blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from penstock.sim.fake_engine.calls import CallError, bad_request
from penstock.sim.fake_engine.http import EngineConnection, HttpRequest


class _Named(msgspec.Struct):
    lora_name: str
    lora_path: str = ""


class Adapters:
    """The listed adapters, by name. `most` of them are in memory at once; another one is brought there in `load_s`."""

    def __init__(self) -> None:
        self._paths: dict[str, str] = {}
        self.most = 1
        self.load_s = 0.0
        self.loads = 0  # how often one was brought to memory
        self._ready_s: dict[str, float] = {}  # those in memory, the one not used for longest first, and from when on

    def serve(self, names: Iterable[str], *, most: int, load_s: float) -> None:
        """List the adapters `names` from the start, as `--lora-modules` does."""
        self._paths.update(dict.fromkeys(names, ""))
        self.most, self.load_s = most, load_s

    def use(self, name: str, now: float) -> float:
        """Note a request for a model. Returns after how many seconds its adapter is in memory."""
        if name not in self._paths:
            return 0.0
        ready_s = self._ready_s.pop(name, None)
        if ready_s is None:
            self.loads += 1
            ready_s = now + self.load_s
            if len(self._ready_s) >= self.most:
                del self._ready_s[next(iter(self._ready_s))]
        self._ready_s[name] = ready_s
        return max(0.0, ready_s - now)

    def __bool__(self) -> bool:
        return bool(self._paths)

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
