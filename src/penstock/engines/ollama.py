"""The dialect of Ollama. It reports no load, lists the models on disk, and runs single requests unless configured."""

from __future__ import annotations

from penstock.engines.base import Document, Engine, Facts, Json, text, version_at

MODELS_MAX = 10_000


def _tags(page: Json) -> Facts:
    models = page.get("models")
    listed = (
        [text(model.get("name")) for model in models[:MODELS_MAX] if isinstance(model, dict)]
        if isinstance(models, list)
        else []
    )
    return Facts(models=tuple(name for name in listed if name))


OLLAMA = Engine(
    name="ollama",
    title="Ollama",
    owned_by=("library",),
    signs=(("/api/version", ("version",)),),
    probe_path="/api/version",
    lists_unloaded=True,
    documents=(version_at("/api/version"), Document("/api/tags", _tags)),
    no_model=("model '{}' not found", 'model "{}" not found'),
    flags={"slots": "OLLAMA_NUM_PARALLEL (1 unless set): put the same number into `slots`"},
)
