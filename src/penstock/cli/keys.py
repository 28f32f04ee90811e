"""`penstock keys new|hash`: how does a tenant get a key that only its owner knows?

The gateway needs only the hash, so the key itself has to be kept nowhere but by its owner.
"""

from __future__ import annotations

import argparse
import getpass
import json
import re
import sys

from penstock.config.problems import Refused
from penstock.config.sections.tenancy import NAMES_WITHOUT_KEYS
from penstock.config.values import tenant_name
from penstock.gateway.identity.callers import KEY_CHARACTERS_MAX, key_hash, new_key

EXIT_OK, EXIT_WRONG = 0, 2
_KEY = re.compile(rf"[!-~]{{1,{KEY_CHARACTERS_MAX}}}", re.ASCII)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    new = commands.add_parser(
        "new",
        help="make a key for a tenant",
        description="Make a key. It is shown once; the settings get only its hash.",
    )
    new.add_argument("name", metavar="NAME", help="the tenant's name")
    new.set_defaults(keys=_new)
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
    try:
        name = tenant_name(args.name)
    except Refused as refused:
        return _wrong(str(refused))
    if name in NAMES_WITHOUT_KEYS:
        return _wrong(f"`{name}` stands for callers without a key")
    key = new_key()
    written = json.dumps(name, ensure_ascii=False).replace("$", "$$")  # `$$` is a dollar sign in the settings
    print(f"key:  {key}")
    print(f"hash: {key_hash(key)}")
    print()
    print("The key is not shown again. Its caller sends it as `Authorization: Bearer KEY`.")
    print("For the settings:")
    print()
    print(f'tenants:\n  - name: {written}\n    keys: ["{key_hash(key)}"]')
    return EXIT_OK


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
