"""Other places of our settings, which are understood: they move to their own before anything is checked.

These are former names, and default bands that are changed by name.
"""

from __future__ import annotations

from penstock.config.layers import Merged
from penstock.config.model import DEFAULT_BANDS
from penstock.config.problems import Problem, did_you_mean, mapping_of


def moved(merged: Merged) -> Merged:
    """Returns the layers with all settings in their own places, their origins included."""
    return _of_batch(_of_bands(merged))


def _of_bands(merged: Merged) -> Merged:
    """Replaces a mapping of default bands' names to what differs by the list of all bands, highest first."""
    changed = merged.document.get("bands")
    if not isinstance(changed, dict) or not isinstance(changed.get("name", {}), dict | None):
        return merged  # it is a list, or a band that should have been an item of one
    names = [band.name for band in DEFAULT_BANDS]
    for name in changed:
        if name not in names:
            hint = did_you_mean(str(name), names) or "for others list all, highest first: `bands: [{name: …}, …]`"
            path = f"bands.{name}"
            message = f"is none of the default bands ({', '.join(names)})"
            merged.problems.append(Problem(path if path.isprintable() else ascii(path), message, hint))
    bands: list[object] = []
    for index, band in enumerate(DEFAULT_BANDS):
        its, usual = changed.get(band.name), band.model_dump(exclude_defaults=True)
        bands.append({**usual, **its} if isinstance(its, dict) else usual if its is None else its)
        here = ("bands", band.name)
        merged.unresolved |= {("bands", index, *place[2:]) for place in merged.unresolved if place[:2] == here}
        merged.origins |= {
            ("bands", index, *place[2:]): origin for place, origin in merged.origins.items() if place[:2] == here
        }
    merged.document = {**merged.document, "bands": bands}
    return merged


def _of_batch(merged: Merged) -> Merged:
    """Moves the store out of `batch`.

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
