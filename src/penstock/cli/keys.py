"""`penstock keys new|ls|limit|revoke|hash`: issuing, listing, limiting and revoking API keys.

The gateway stores only hashes. `new TENANT` makes a key for the settings, without a gateway; `new TENANT NAME`, `ls`,
`limit` and `revoke` call a running one.
"""

from __future__ import annotations

import argparse
import getpass
import json
import re
import sys
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from penstock import clock
from penstock.cli import admin_client
from penstock.cli.admin_client import AdminClient
from penstock.cli.top import views
from penstock.config import values
from penstock.config.load import ConfigError, from_mapping
from penstock.config.problems import Refused
from penstock.config.sections.tenancy import NAMES_WITHOUT_KEYS
from penstock.gateway.identity.callers import KEY_CHARACTERS_MAX, key_hash, new_key

EXIT_OK, EXIT_WRONG = 0, 2
_LIST = "/admin/keys"
_KEY = re.compile(rf"[!-~]{{1,{KEY_CHARACTERS_MAX}}}", re.ASCII)
_RIGHTS = ("models", "max_prompt_tokens", "max_output_tokens", "expires", "limits")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    new = admin_client.add_verb(
        commands,
        "new",
        "issue a key for a tenant",
        "Issue a key, which is shown once. With NAME, at a running gateway with `identity.made_keys`; "
        "without, its hash is printed for the settings.",
        keys=_new,
    )
    new.add_argument("tenant", metavar="TENANT", help="the tenant's name")
    new.add_argument("name", metavar="NAME", nargs="?", help="the key's name at a running gateway")
    new.add_argument("--models", metavar="NAME,…", help="models it may use, with `*` as wildcard (default: all)")
    new.add_argument("--max-prompt-tokens", metavar="N", help="longest prompt")
    new.add_argument("--max-output-tokens", metavar="N", help="longest answer")
    new.add_argument(
        "--expires", metavar="WHEN", help="90d from now, 2027-01-31 (the end of that day, UTC) or 2027-01-31T18:00:00Z"
    )
    new.add_argument("--limits", metavar="NAME=N,…", help="its own limits: running, queued, requests_per_minute …")
    listing = admin_client.add_verb(
        commands,
        "ls",
        "show the keys of a running gateway",
        "Show the keys of a running gateway, from its settings and issued ones.",
        keys=partial(admin_client.asked, work=_list),
    )
    listing.add_argument("--tenant", metavar="NAME", help="only those of one tenant")
    limit = admin_client.add_verb(
        commands,
        "limit",
        "limit a key issued at a running gateway",
        "Set limits of a key issued at a running gateway; those that are not named stay.",
        names="the key's name",
        keys=partial(admin_client.asked, work=_limit),
    )
    kinds = limit.add_mutually_exclusive_group(required=True)
    kinds.add_argument(
        "--limits", metavar="NAME=N,…", help="running, queued, requests_per_minute …; `none`: no such limit"
    )
    kinds.add_argument("--reset", action="store_true", help="end all of its own limits")
    admin_client.add_verb(
        commands,
        "revoke",
        "revoke a key issued at a running gateway",
        "Revoke a key issued at a running gateway. Its next request gets 401; requests under way continue.",
        names="the key's name",
        keys=partial(admin_client.asked, work=_revoke),
    )
    hashed = commands.add_parser(
        "hash",
        help="print a key's hash",
        description="Print the hash of a key, for the settings. Prefer stdin: others may see the command line.",
    )
    hashed.add_argument("key", metavar="KEY", nargs="?", default="-", help="the key; - (the default) reads stdin")
    hashed.set_defaults(keys=_hash)


def run(args: argparse.Namespace) -> int:
    return int(args.keys(args))


def _rights(args: argparse.Namespace) -> dict[str, object]:
    rights: dict[str, object] = {right: getattr(args, right) for right in _RIGHTS if getattr(args, right) is not None}
    if args.models is not None:
        rights["models"] = [name.strip() for name in args.models.split(",")]
    if args.limits is not None:
        rights["limits"] = _limits(args.limits)
    return rights


def _limits(written: str) -> dict[str, object]:
    pairs = [pair.partition("=") for pair in written.split(",")]
    return {name.strip(): int(most) if most.strip().isdecimal() else most for name, _, most in pairs}


def _new(args: argparse.Namespace) -> int:
    """Issue a key at a running gateway if it has a name, otherwise for the settings."""
    if args.name is not None:
        return admin_client.asked(args, _issue)
    rights = _rights(args)
    try:
        name = values.tenant_name(args.tenant)
    except Refused as refused:
        return _wrong(str(refused))
    if name in NAMES_WITHOUT_KEYS:
        return _wrong(f"`{name}` is for clients without a key")
    expires = values.from_now(args.expires, clock.wall())
    if isinstance(expires, float):
        rights["expires"] = values.write_moment(expires).replace(" UTC", "Z")
    key = new_key()
    entry = {"hash": key_hash(key), **rights}
    try:
        from_mapping({"tenants": [{"name": name, "keys": [entry]}]})
    except ConfigError as error:
        return _wrong("; ".join(problem.line().removeprefix("tenants[0].keys[0].") for problem in error.problems))
    print(f"key:  {key}")
    print(f"hash: {key_hash(key)}")
    print()
    print("The key is not shown again. Clients send it as `Authorization: Bearer KEY`.")
    print("For the settings:")
    print()
    written = _written(entry) if rights else f'"{key_hash(key)}"'
    print(f"tenants:\n  - name: {_written(name)}\n    keys: [{written}]")
    return EXIT_OK


def _issue(client: AdminClient, args: argparse.Namespace) -> int:
    made = client.call("POST", _LIST, {"tenant": args.tenant, "name": args.name, **_rights(args)})
    name = views.plain(made["name"])
    return admin_client.show(
        args,
        made,
        f"key:  {made['key']}",
        f"name: {name}",
        "",
        "The key is not shown again. It works now; clients send it as `Authorization: Bearer KEY`.",
        f"`penstock keys revoke {name}` revokes it.",
    )


def _list(client: AdminClient, args: argparse.Namespace) -> int:
    query = f"?{urlencode({'tenant': args.tenant})}" if args.tenant else ""
    answer = client.call("GET", _LIST + query)
    lines = [_line(key) for key in answer["keys"]] or ["no keys"]
    if answer["more"]:
        lines.append(f"and {answer['more']:,} more; --tenant NAME shows one tenant's")
    if answer["trouble"]:
        lines.append(f"The store can't be read; known so far: {views.plain(answer['trouble'], 500)}")
    return admin_client.show(args, answer, *lines)


def _limit(client: AdminClient, args: argparse.Namespace) -> int:
    path = f"{_LIST}/{quote(args.name, safe='')}/limit"
    if args.reset:
        answer = client.call("DELETE", path)
    else:
        limits = {name: None if most == "none" else most for name, most in _limits(args.limits).items()}
        answer = client.call("POST", path, limits)
    return admin_client.show(args, answer, _line(answer))


def _revoke(client: AdminClient, args: argparse.Namespace) -> int:
    answer = client.call("DELETE", f"{_LIST}/{quote(args.name, safe='')}")
    return admin_client.show(args, answer, f"{views.plain(answer['name'])}: revoked")


def _line(key: dict[str, Any]) -> str:
    said = [
        f"{views.plain(key['name'])}: {views.plain(key['tenant'])}",
        "from the settings" if key["source"] == "file" else "issued",
    ]
    if key["state"] != "good":
        said.insert(0, key["state"].upper())
    if key["models"]:
        said.append(f"models {views.plain(' '.join(key['models']), 200)}")
    for bound, words in (("max_prompt_tokens", "prompts of"), ("max_output_tokens", "answers of")):
        if key[bound] is not None:
            said.append(f"{words} {key[bound]:,} tokens")
    if key["limits"]:
        said.append(f"limits {' '.join([f'{views.plain(name)}={most:,}' for name, most in key['limits'].items()])}")
    if key["expires_at"] is not None:
        said.append(f"until {values.write_moment(key['expires_at'])}")
    return ", ".join(said)


def _written(value: object) -> str:
    """Returns a value as YAML; `$$` is a dollar sign in the settings."""
    return json.dumps(value, ensure_ascii=False).replace("$", "$$")


def _hash(args: argparse.Namespace) -> int:
    key = args.key if args.key != "-" else _read_key()
    if not _KEY.fullmatch(key):
        return _wrong(f"a key is 1 to {KEY_CHARACTERS_MAX} visible ASCII characters without spaces")
    print(key_hash(key))
    return EXIT_OK


def _read_key() -> str:
    if sys.stdin.isatty():
        return getpass.getpass("Key: ").strip()
    return sys.stdin.read(KEY_CHARACTERS_MAX + 3).strip()


def _wrong(message: str) -> int:
    print(f"penstock: {message}", file=sys.stderr)
    return EXIT_WRONG
