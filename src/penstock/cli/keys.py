"""`penstock keys new|ls|revoke|hash`: how does a tenant get a key that only its owner knows?

The gateway needs only the hash, so the key itself has to be kept nowhere but by its owner. `new TENANT` makes one for
the settings, without any gateway; `new TENANT NAME`, `ls` and `revoke` ask a running one (`steering/key.py`).
"""

from __future__ import annotations

import argparse
import getpass
import json
import re
import sys

from penstock.cli.steering import key as made_key
from penstock.config.load import ConfigError, from_mapping
from penstock.config.problems import Refused
from penstock.config.sections.tenancy import NAMES_WITHOUT_KEYS
from penstock.config.values import tenant_name
from penstock.gateway.identity.callers import KEY_CHARACTERS_MAX, key_hash, new_key

EXIT_OK, EXIT_WRONG = 0, 2
_KEY = re.compile(rf"[!-~]{{1,{KEY_CHARACTERS_MAX}}}", re.ASCII)
_RIGHTS = ("models", "max_prompt_tokens", "max_output_tokens", "expires")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    new = commands.add_parser(
        "new",
        help="make a key for a tenant",
        description="Make a key. It is shown once. With NAME, a running gateway has it at once (its settings say "
        "`identity.made_keys: true`); without, the hash is printed for the settings.",
        allow_abbrev=False,
    )
    new.add_argument("tenant", metavar="TENANT", help="the tenant's name")
    new.add_argument("name", metavar="NAME", nargs="?", help="what the key is called at a running gateway")
    new.add_argument("--models", metavar="NAME,…", help="models it may use, `*` stands for anything (default: all)")
    new.add_argument("--max-prompt-tokens", metavar="N", help="the longest prompt it may send")
    new.add_argument("--max-output-tokens", metavar="N", help="the longest answer it may ask for")
    new.add_argument("--expires", metavar="WHEN", help="2027-01-31 (the end of that day, UTC) or 2027-01-31T18:00:00Z")
    new.set_defaults(keys=_new)
    listing = commands.add_parser(
        "ls",
        help="show the keys of a running gateway",
        description="Show the keys of a running gateway: those of its settings, and those that were made.",
        allow_abbrev=False,
    )
    listing.add_argument("--tenant", metavar="NAME", help="only those of one tenant")
    listing.set_defaults(keys=made_key.list_keys)
    revoke = commands.add_parser(
        "revoke",
        help="withdraw a key that was made at a running gateway",
        description="Withdraw a key that was made at a running gateway. Its next request gets 401; what it brought in "
        "goes on.",
        allow_abbrev=False,
    )
    revoke.add_argument("name", metavar="NAME", help="the key's name")
    revoke.set_defaults(keys=made_key.revoke)
    for sub in (new, listing, revoke):
        made_key.add_arguments(sub)
    hashed = commands.add_parser(
        "hash",
        help="tell a key's hash",
        description="Tell the hash by which the settings know a key. It is best read from stdin: what stands on a "
        "command line can be seen by others.",
    )
    hashed.add_argument("key", metavar="KEY", nargs="?", default="-", help="the key; - (the default) reads stdin")
    hashed.set_defaults(keys=_hash)


def run(args: argparse.Namespace) -> int:
    return int(args.keys(args))


def _new(args: argparse.Namespace) -> int:
    """At a running gateway where the key has a name, else for the settings."""
    rights: dict[str, object] = {right: getattr(args, right) for right in _RIGHTS if getattr(args, right) is not None}
    if args.models is not None:
        rights["models"] = [name.strip() for name in args.models.split(",")]
    if args.name is not None:
        return made_key.make(args, rights)
    try:
        name = tenant_name(args.tenant)
    except Refused as refused:
        return _wrong(str(refused))
    if name in NAMES_WITHOUT_KEYS:
        return _wrong(f"`{name}` stands for callers without a key")
    key = new_key()
    entry = {"hash": key_hash(key), **rights}
    try:
        from_mapping({"tenants": [{"name": name, "keys": [entry]}]})
    except ConfigError as error:
        return _wrong("; ".join(problem.line().removeprefix("tenants[0].keys[0].") for problem in error.problems))
    print(f"key:  {key}")
    print(f"hash: {key_hash(key)}")
    print()
    print("The key is not shown again. Its caller sends it as `Authorization: Bearer KEY`.")
    print("For the settings:")
    print()
    written = _written(entry) if rights else f'"{key_hash(key)}"'
    print(f"tenants:\n  - name: {_written(name)}\n    keys: [{written}]")
    return EXIT_OK


def _written(value: object) -> str:
    """As YAML has it; `$$` is a dollar sign in the settings."""
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
