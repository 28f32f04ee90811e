"""Former names of our settings, which are understood: they move to their place of today before anything is checked."""

from __future__ import annotations

from penstock.config.layers import Merged
from penstock.config.problems import Problem, mapping_of


def moved(merged: Merged) -> Merged:
    """Returns the layers with former names of ours moved to those of today, their origins included.

    Until `store` had a name of its own, `batch` held it: `batch.data` or `batch.url` named the store and switched files
    and batches on at once.
    """
    batch = mapping_of(merged.document.get("batch"))
    rest = {name: value for name, value in batch.items() if name not in ("data", "url", "store")}
    if len(rest) == len(batch):
        return merged
    store = {name: batch[name] for name in ("data", "url") if batch.get(name) is not None}
    if batch.get("store") == "postgres":
        store.setdefault("url", "postgres")  # refused, because its address is missing
    elif batch.get("store") not in (None, "sqlite"):
        merged.problems.append(Problem("batch.store", "is a former setting", "write `store: FOLDER` instead"))
    merged.document = {**merged.document, "batch": rest}
    if not store:
        return merged
    if merged.document.get("store") is not None:
        message = "is the former name of `store`, which is given too"
        merged.problems.append(Problem(f"batch.{next(iter(store))}", message, "keep `store`"))
        return merged
    for name in store:
        if ("batch", name) in merged.unresolved:
            merged.unresolved.add(("store", name))
        if (origin := merged.origin(("batch", name))) is not None:
            merged.origins["store", name] = origin
    merged.document = {**merged.document, "store": store, "batch": {"serve": True, **rest}}
    return merged
