"""What outlasts a gateway: the store and its place; files and batches in it, whether they are served, and their quota.

The place is the state folder if no setting names another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, SecretStr

from penstock.config import values
from penstock.config.problems import Document, Found, Refused, missing_extra, problem
from penstock.config.sections.section import Section, setting

if TYPE_CHECKING:
    from penstock.config.model import Settings

SYSTEM_FOLDER = "/var/lib/penstock"  # `StateDirectory=penstock` in the unit that is shipped
STORE = "store"  # the folder of the store, in the state folder
NO_FOLDER = "there is no state folder, because HOME is not set: name one by `state_dir`, or write `store: off`"
POSTGRES = ("postgresql://", "postgres://")


def postgres_url(value: object) -> SecretStr:
    found = values.secret(value)
    if not found.get_secret_value().startswith(POSTGRES):
        raise Refused("is not a PostgreSQL URL", "write `postgresql://user:password@host/database`")
    return found


class StoreSection(Section):
    """What outlasts the gateway: the ledger of use (`usage`), issued keys (`identity.made_keys`), files and batches.

    Short forms: `store: FOLDER`, `store: postgresql://…` and `store: off`. Without a word here it is a SQLite file in
    the state folder; if that can't be written, the gateway serves without it, and reports that. `batch.data` and
    `batch.url`, the former names of `store.data` and `store.url`, switch files and batches on, too.
    """

    enabled: values.Bool = setting(default=True, meaning="`false`: nothing is stored.")
    data: values.OptionalFile = setting(
        None,
        "The folder of the SQLite file; created if missing. For one gateway only. Default: `store` in the state folder "
        "(`state_dir`).",
    )
    url: Annotated[
        SecretStr | None, BeforeValidator(values.optional(postgres_url)), values.ValueKind("secret text")
    ] = setting(
        None,
        "Instead of a folder: `postgresql://user:password@host/database`, which several gateways may share (extra "
        "`postgres`). Never logged or shown.",
    )


def store_form(value: object) -> object:
    """Returns the section for a short form; any other value unchanged."""
    words = {"off": False, "false": False, "on": True, "true": True}
    value = words.get(value.strip().lower(), value) if isinstance(value, str) else value
    if isinstance(value, bool):
        return {"enabled": value}
    if isinstance(value, str):
        return {"url" if value.startswith(POSTGRES) else "data": value}
    return value


class BatchLimits(Section):
    """Quotas of each tenant, and bounds of one file."""

    files: values.Whole = setting(1_000, "Files of a tenant, results included. More: 429.", ge=1)
    bytes: values.Size = setting(10 * 2**30, "Total bytes of its files. More: 429.", ge=1)
    batches: values.Whole = setting(100, "Unfinished batches of a tenant. More: 429.", ge=1)
    items: values.Whole = setting(1_000_000, "Requests in its unfinished batches. More: 429.", ge=1)
    max_file: values.Size = setting(200 * 2**20, "The largest upload.", ge=1)
    max_lines: values.Whole = setting(50_000, "Lines of one file.", ge=1, le=1_000_000)
    max_line: values.Size = setting(4 * 2**20, "The longest line of a file.", ge=1_000, le=64 * 2**20)


class BatchSection(Section):
    """OpenAI's files and batches API, kept in `store`. Their requests run in the lowest band."""

    serve: values.Bool = setting(default=False, meaning="Serve them.")
    keep: values.Duration = setting(30 * 86_400.0, "Default retention of files.", ge=3600)
    claim_timeout: values.Duration = setting(
        30.0, "With a shared store: how long a silent gateway's claims on requests last.", ge=1
    )
    limits: BatchLimits = BatchLimits()


def store_checks(document: Document) -> Found:
    raw = store_form(document.get("store"))
    store, batch = StoreSection.valid(raw), BatchSection.valid(document.get("batch"))
    if store is not None and store.url is not None:
        if store.data is not None:
            message = "is a second store beside `store.url`, and with PostgreSQL everything is in the database"
            yield problem(("store", "data"), message, "remove it")
        yield from missing_extra(("store", "url"), "needs psycopg, which is not installed", "postgres", "psycopg")
    if batch is not None and batch.limits.max_line > batch.limits.max_file:
        yield problem(("batch", "limits", "max_line"), "is more than `batch.limits.max_file`")


def state_folders(state_dir: str | None, env: Mapping[str, str]) -> Iterator[Path]:
    """Yields the places that settings and variables name, the first one is the gateway's."""
    if state_dir:
        yield Path(state_dir)
    if env.get("STATE_DIRECTORY"):
        yield Path(env["STATE_DIRECTORY"].partition(":")[0])
    if env.get("XDG_STATE_HOME", "").startswith("/"):  # a relative one is invalid by the specification
        yield Path(env["XDG_STATE_HOME"]) / "penstock"
    elif env.get("HOME", "").startswith("/"):
        yield Path(env["HOME"]) / ".local" / "state" / "penstock"


def folder_of(state_dir: str | None, env: Mapping[str, str]) -> Path | None:
    """The state folder of a gateway; None if nothing sets one."""
    return next(state_folders(state_dir, env), None)


def store_folder(settings: Settings, env: Mapping[str, str]) -> Path | None:
    """Returns the folder of the store's SQLite file; None if there is no state folder."""
    if settings.store.data is not None:
        return Path(settings.store.data)
    folder = folder_of(settings.state_dir, env)
    return None if folder is None else folder / STORE
