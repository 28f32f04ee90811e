"""`penstock tenant …`: shows, pauses, limits, weighs or clears a tenant of a running gateway."""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import quote

from penstock.cli import admin_client
from penstock.cli.admin_client import AdminClient, GatewayError
from penstock.cli.top import views
from penstock.config.sections.tenancy import OwnLimits
from penstock.gateway.admin.phrases import seconds

_LIST = "/admin/tenants"
_UNLIMITED = "none"
_NAME = "the tenant's name"
_SHORT = {"requests_per_minute": "rpm", "tokens_per_minute": "tpm"}
_CHANGES = {
    "pause": "stop dispatching its requests until `resume`; new ones queue, running ones finish",
    "resume": "end a pause",
    "limit": "override the limits of the settings until `limit --reset`",
    "weigh": "override the weight of the settings until `weigh --reset`",
    "cancel": "cancel its queued requests",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    admin_client.add_verb(verbs, "ls", "show the tenants", tenant=_list)
    admin_client.add_verb(
        verbs,
        "show",
        "show one tenant: its limits, their origin and remainder",
        "Show one tenant: its requests, its limits and their origin (the settings or an operator), and of rates the "
        "use, the remainder and when more comes back.",
        names=_NAME,
        tenant=_show,
    )
    for verb, meaning in _CHANGES.items():
        sub = admin_client.add_verb(verbs, verb, meaning, names=_NAME, tenant=_CALLS[verb])
        if verb in ("pause", "limit", "weigh"):
            sub.add_argument("--until-reload", action="store_true", help="or until the next reload")
        if verb == "limit":
            _add_limits(sub)
        if verb == "weigh":
            weights = sub.add_mutually_exclusive_group(required=True)
            weights.add_argument("weight", metavar="N", nargs="?", help="its relative share of the service")
            weights.add_argument("--reset", action="store_true", help="restore the weight of the settings")
        if verb == "cancel":
            sub.add_argument("--running", action="store_true", help="also abort running requests")


def run(args: argparse.Namespace) -> int:
    return admin_client.asked(args, _run)


def _run(client: AdminClient, args: argparse.Namespace) -> int:
    answer = args.tenant(client, args)
    if "cancelled" in answer:
        count = answer["cancelled"]
        lines = [f"{views.plain(answer['name'])}: {count:,} request{'' if count == 1 else 's'} cancelled"]
    else:
        listed = answer.get("tenants", [answer])
        lines = [line for tenant in listed for line in _lines(tenant, whole=args.tenant is not _list)]
    if answer.get("more"):
        lines.append(f"and {answer['more']:,} more without requests here")
    return admin_client.show(args, answer, *lines)


def _add_limits(parser: argparse.ArgumentParser) -> None:
    for key, field in OwnLimits.model_fields.items():
        meaning = (field.description or "").partition(". ")[0].rstrip(".")
        help_text = f"{meaning[0].lower()}{meaning[1:]} (`{_UNLIMITED}`: no such limit)".replace("%", "%%")
        shorts = [f"--{_SHORT[key]}"] if key in _SHORT else []
        parser.add_argument(f"--{key.replace('_', '-')}", *shorts, metavar="N", help=help_text)
    parser.add_argument("--reset", action="store_true", help="restore the limits of the settings")


def _list(client: AdminClient, _: argparse.Namespace) -> Any:
    return client.call("GET", _LIST)


def _show(client: AdminClient, args: argparse.Namespace) -> Any:
    return client.call("GET", _path(args))


def _pause(client: AdminClient, args: argparse.Namespace) -> Any:
    return client.call("POST", f"{_path(args)}/pause", {"until_reload": True} if args.until_reload else {})


def _resume(client: AdminClient, args: argparse.Namespace) -> Any:
    return client.call("POST", f"{_path(args)}/resume", {})


def _limit(client: AdminClient, args: argparse.Namespace) -> Any:
    given = {key: getattr(args, key) for key in OwnLimits.model_fields if getattr(args, key) is not None}
    if args.reset:
        if given:
            raise GatewayError("--reset cannot be combined with other limits")
        return client.call("DELETE", f"{_path(args)}/limit")
    body: dict[str, object] = {key: None if value == _UNLIMITED else value for key, value in given.items()}
    if args.until_reload:
        body["until_reload"] = True
    return client.call("POST", f"{_path(args)}/limit", body)


def _weigh(client: AdminClient, args: argparse.Namespace) -> Any:
    if args.reset:
        return client.call("DELETE", f"{_path(args)}/weight")
    body = {"weight": args.weight, **({"until_reload": True} if args.until_reload else {})}
    return client.call("POST", f"{_path(args)}/weight", body)


def _cancel(client: AdminClient, args: argparse.Namespace) -> Any:
    """The gateway cancels some per call; repeat until those counted at first are gone."""
    body = {"running_too": True} if args.running else {}
    answer = client.call("POST", f"{_path(args)}/cancel", body)
    cancelled, left = answer["cancelled"], answer["left"]
    while left > 0 and answer["cancelled"]:
        answer = client.call("POST", f"{_path(args)}/cancel", body)
        cancelled, left = cancelled + answer["cancelled"], left - answer["cancelled"]
    return {**answer, "cancelled": cancelled}


def _path(args: argparse.Namespace) -> str:
    return f"{_LIST}/{quote(args.name, safe='')}"


def _lines(tenant: dict[str, Any], *, whole: bool) -> list[str]:
    """Returns a tenant on one line, or with `whole` a line per limit."""
    said = [f"{tenant['waiting']:,} waiting", f"{tenant['running']:,} running"]
    if tenant["weight"] is not None:
        said.append(f"weight {tenant['weight']:g}")
    if by := tenant["weight_by"]:
        settings = "not in the settings" if by["settings"] is None else f"in the settings: {by['settings']:g}"
        said[-1] += f" ({_who(by, 'weigh --reset')}; {settings})"
    if not tenant["in_settings"]:
        said.append("not in the settings")
    if tenant["paused"]:
        said.insert(0, f"PAUSED ({_who(tenant['paused'], 'resume')})")
    budgets = tenant.get("budgets", {})  # an older gateway has none
    limits = [
        _limit_line(key, limit) + (_left(budgets[key], whole=whole) if key in budgets else "")
        for key, limit in tenant["limits"].items()
    ]
    name = views.plain(tenant["name"])
    if whole:
        return [f"{name}: {', '.join(said)}", *(f"  {line}" for line in limits or ["no limits"])]
    return [f"{name}: {', '.join([*said, *limits])}"]


def _limit_line(key: str, limit: dict[str, Any]) -> str:
    value = _UNLIMITED if limit["value"] is None else f"{limit['value']:,}"
    if limit["by"] != "operator":
        return f"{key} {value}"
    settings = _UNLIMITED if limit["settings"] is None else f"{limit['settings']:,}"
    return f"{key} {value} ({_who(limit, 'limit --reset')}; in the settings: {settings})"


def _left(budget: dict[str, Any], *, whole: bool) -> str:
    if not whole:
        return f" ({budget['remaining']:,} left)"
    comes = f", more in {seconds(budget['next_s'])}" if budget["next_s"] else ""
    full = f", all back in {seconds(budget['reset_s'])}" if budget["used"] else ""
    return f": {budget['used']:,} used, {budget['remaining']:,} left{comes}{full}"


def _who(change: dict[str, Any], ends: str) -> str:
    return f"by an operator, until `{ends}` or {'the next reload' if change['until'] == 'reload' else 'a restart'}"


_CALLS = {"pause": _pause, "resume": _resume, "limit": _limit, "weigh": _weigh, "cancel": _cancel}
