"""`python -m penstock.conformance DECISION POLICY`: runs the suite, a line per claim."""

from __future__ import annotations

import argparse
import importlib
import sys

from penstock.config.sections.policies import GROUPS, offered
from penstock.conformance import results


def main(argv: list[str] | None = None) -> int:
    """0: it passes; 1: it does not; 2: it is no policy, or can't be found."""
    parser = argparse.ArgumentParser(prog="python -m penstock.conformance", description=__doc__)
    parser.add_argument("decision", choices=sorted(GROUPS))
    parser.add_argument("policy", help="MODULE:NAME, or the name of an installed entry point")
    args = parser.parse_args(argv)
    try:
        found = results(args.decision, _policy(args.decision, args.policy))
    except (ValueError, ImportError, AttributeError) as error:
        print(f"{args.policy}: {error}", file=sys.stderr)
        return 2
    for claim, problem in found:
        print(f"{'ok   ' if problem is None else 'WRONG'} {claim}")
        if problem is not None:
            print(f"      {problem}")
    wrong = sum(problem is not None for _, problem in found)
    print(f"{args.policy}: {'passes' if not wrong else f'{wrong} of {len(found)} claims do not hold'}")
    return 1 if wrong else 0


def _policy(decision: str, named: str) -> object:
    module, colon, name = named.partition(":")
    if colon:
        found: object = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found
    points = offered(decision).get(named, ())
    if len(points) != 1:
        what = "is offered by several packages" if points else f"is no entry point of `{GROUPS[decision]}`"
        raise ValueError(f"{what}; write MODULE:NAME")
    return points[0].load()


if __name__ == "__main__":
    sys.exit(main())
