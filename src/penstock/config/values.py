"""Values: the types of settings, such as numbers, durations, sizes, names and secrets.

Each type is `Annotated` with its reader and a `ValueKind`, its name in the reference. A reader returns the value or
raises `Refused`. Every scalar may be given as text, because environment variables are text. Booleans are never numbers,
numbers never booleans, and nothing is infinite.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, PlainValidator, SecretStr

from penstock.config.address import endpoint_url, network, socket_address
from penstock.config.problems import Refused, show

T = TypeVar("T")

WHOLE_MAX = 2**53  # exact in JSON
MOMENT_S_MIN = 1e9  # the year 2001: a smaller number was meant as a year
MOMENT_S_MAX = 253_402_300_799.0  # the year 9999
DURATION_S_MAX = 10 * 365 * 86_400.0  # ten years: more is a wrong unit
CLAIM_CHARACTERS_MAX = 256  # some are URLs
NAME_CHARACTERS_MAX = 128
MODEL_CHARACTERS_MAX = 256
MODELS_MAX = 1_000
WORKERS_MAX = 64  # one decider feeds some tens of them
WEIGHT_MAX = 1e6  # and 1/WEIGHT_MAX at least: beyond it, sums of tokens per weight lose their small parts

TOKEN_CHARACTERS_MIN = 8  # as for passwords (NIST SP 800-63B), guessed as slowly; docs/security.md asks for 32
DIFFERENT_CHARACTERS_MIN = 4
TOKENS_KNOWN = frozenset({"change-me", "changeme", "changeit", "password", "penstock", "12345678", "admin-token"})

_NUMBER = re.compile(r"[-+]?(\d{1,18}(\.\d{0,18})?|\.\d{1,18})([eE][-+]?\d{1,3})?", re.ASCII)
_WITH_UNIT = re.compile(r"([-+]?\d{1,18}(?:\.\d{1,18})?)\s?([A-Za-z]*)", re.ASCII)
_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTES = {"": 1, "b": 1} | {
    f"{letter}{infix}b": base**power
    for infix, base in (("", 1000), ("i", 1024))
    for power, letter in enumerate("kmgt", start=1)
}
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_VISIBLE = re.compile(r"[!-~]{1,4096}", re.ASCII)
_NAME = re.compile(r"[^\s\"'`,]{1,128}")
_KEY_HASH = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(r"[ tT]\d\d:\d\d(:\d\d(\.\d{1,6})?)?([zZ]|[+-]\d\d:\d\d)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ValueKind:
    """A type's name in the reference, and how its defaults are written there."""

    name: str
    write: Callable[[float], str] = lambda value: f"{value:g}"
    choices: Callable[[], tuple[str, ...]] | None = None  #: our own, then others', of a choice that packages may add to


def number(value: object) -> float:
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refused(f"{show(value)} is not a number")
    if not abs(value) <= WHOLE_MAX:  # also true of nan
        raise Refused(f"{show(value)} is out of range for this setting")
    return float(value)


def whole(value: object) -> int:
    try:
        result = number(value)
    except Refused:
        raise Refused(f"{show(value)} is not a whole number") from None
    if not result.is_integer():
        raise Refused(f"{show(value)} is not a whole number")
    return int(result)


def duration(value: object) -> float:
    if isinstance(value, str):
        match = _WITH_UNIT.fullmatch(value.strip())
        unit = _SECONDS.get(match[2]) if match else None
        if match is None or unit is None:
            raise Refused(f"{show(value)} is not a duration", "write seconds, or a unit: 500ms, 20s, 2m, 1h, 7d")
        # Dividing keeps 500ms at exactly 0.5; multiplying by 0.001 would not always.
        seconds = float(match[1]) / 1000 if match[2] == "ms" else float(match[1]) * unit
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise Refused(f"{show(value)} is not a duration", "write seconds, or a unit: 500ms, 20s, 2m, 1h, 7d")
    else:
        seconds = value
    if not abs(seconds) <= DURATION_S_MAX:
        raise Refused(f"{show(value)} is longer than ten years")
    return float(seconds)


def moment(value: object) -> float:
    """Returns a moment as Unix time in seconds. A date alone is the end of that day; without a zone, UTC is meant."""
    if isinstance(value, int | float) and not isinstance(value, bool) and MOMENT_S_MIN <= value <= MOMENT_S_MAX:
        return float(value)
    try:
        written = value.strip() if isinstance(value, str) else ""
        if _DATE.fullmatch(written):
            return (datetime.fromisoformat(written).replace(tzinfo=UTC) + timedelta(days=1)).timestamp()
        if _DATE.match(written) and _TIME.fullmatch(written[10:]):
            found = datetime.fromisoformat(written.upper())
            return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        pass  # such as the 31st of a month that has 30 days
    raise Refused(
        f"{show(value)} is not a date or time", "write 2027-01-31 (the end of that day) or 2027-01-31T18:00:00Z"
    )


def from_now(value: object, now: float) -> object:
    """Returns the moment (Unix time) so long after `now` as a duration with a unit says; any other value unchanged."""
    match = _WITH_UNIT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or not match[2] or match[2] not in _SECONDS:
        return value
    moment_s = now + float(match[1]) * _SECONDS[match[2]]
    return moment_s if MOMENT_S_MIN <= moment_s <= MOMENT_S_MAX else value


def write_moment(seconds: float) -> str:
    """Returns a moment as people read it, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC").replace(":00 UTC", " UTC")


def size(value: object) -> int:
    factor = 1
    digits = value
    if isinstance(value, str) and (match := _WITH_UNIT.fullmatch(value.strip())):
        factor = _BYTES.get(match[2].lower(), 0)
        digits = match[1]
    try:
        result = number(digits) * factor
    except Refused:
        factor = 0
    if not factor or not result.is_integer() or abs(result) > WHOLE_MAX:
        raise Refused(f"{show(value)} is not a size", "write bytes, or a unit: 64KB, 64KiB, 10MB, 1GiB")
    return int(result)


def boolean(value: object) -> bool:
    if isinstance(value, str):
        value = _BOOLEANS.get(value.strip().lower(), value)
    if not isinstance(value, bool):
        raise Refused(f"{show(value)} is not true or false")
    return value


def text(value: object) -> str:
    if not isinstance(value, str):
        raise Refused(f"expected text, found {show(value)}", _quoted(value))
    if len(value) > 4096 or not value.isprintable():
        raise Refused("expected at most 4096 printable characters")
    return str(value)


def file(value: object) -> str:
    """Returns the path of a file or folder."""
    result = text(value)
    if "://" in result:
        raise Refused(f"{show(value)} is a URL: expected the path of a file or folder")
    return result


def _quoted(value: object) -> str | None:
    """Returns a suggestion for a number or boolean in place of text."""
    return "put it in quotes" if isinstance(value, bool | int | float) else None


def name(value: object) -> str:
    """Returns an endpoint's name, which must fit headers, metric labels, query strings and command lines."""
    result = text(value)
    if result and not _NAME.fullmatch(result):
        raise Refused(
            f"{show(value)} is not a name: expected at most {NAME_CHARACTERS_MAX} printable characters "
            "without spaces, quotes or commas"
        )
    return result


def model_name(value: object) -> str:
    result = text(value)
    if not result.strip() or len(result) > MODEL_CHARACTERS_MAX:
        raise Refused(f"{show(value)} is not a model's name: expected 1 to {MODEL_CHARACTERS_MAX} characters")
    return result


def key_name(value: object) -> str:
    """Returns a key's name, which must fit a path and a command line."""
    result = name(value)
    if not result:
        raise Refused("a key's name is empty")
    return result


def matching(
    pattern: re.Pattern[str], what: str, hint: str | None = None, *, lower: bool = False
) -> Callable[[object], str]:
    """Returns a reader of text that a pattern describes, as lower case with `lower`. `what` it is: for its refusal."""

    def read(value: object) -> str:
        written = value.lower() if lower and isinstance(value, str) else value
        if not isinstance(written, str) or not pattern.fullmatch(written):
            raise Refused(f"{show(value)} is not {what}", hint if isinstance(value, str) else _quoted(value))
        return str(written)

    return read


def claim_name(value: object) -> str:
    """Returns the name of a token's claim or audience."""
    result = text(value)
    if not result or len(result) > CLAIM_CHARACTERS_MAX:
        raise Refused(f"{show(value)}: expected 1 to {CLAIM_CHARACTERS_MAX} printable characters")
    return result


def tenant_name(value: object) -> str:
    """Returns a tenant's name, which must fit headers and metric labels."""
    result = text(value)
    if not result or len(result) > NAME_CHARACTERS_MAX or result != result.strip():
        raise Refused(
            f"{show(value)} is not a tenant's name: expected 1 to {NAME_CHARACTERS_MAX} printable characters, "
            "with no space at either end"
        )
    return result


def weight(value: object) -> float:
    result = number(value)
    if result <= 0:
        raise Refused(f"{show(value)}: expected more than 0")
    if not 1 / WEIGHT_MAX <= result <= WEIGHT_MAX:
        raise Refused(f"{show(value)}: expected a weight from {1 / WEIGHT_MAX:g} to {WEIGHT_MAX:g}")
    return result


def key_hash(value: object) -> str:
    """Returns the hash of an API key. The value is never shown: it may be the key itself."""
    written = value.strip().lower() if isinstance(value, str) else ""
    if not _KEY_HASH.fullmatch(written):
        raise Refused(
            "is not a key's hash: expected `sha256:` and 64 hexadecimal digits",
            "`penstock keys hash` prints the hash of a key",
        )
    return written


def key_hashes(value: object) -> object:
    """Refuses a key in place of a list; pydantic's own message would show it."""
    if isinstance(value, str):
        raise Refused("expected a list of keys' hashes", 'write it as a list: ["sha256:…"]')
    return value


def key(value: object) -> object:
    """Returns the section for a key's hash; a section unchanged. Nothing of it is shown."""
    if isinstance(value, str):
        return {"hash": key_hash(value)}
    return value if isinstance(value, Mapping | BaseModel) else key_hash(value)


def reserved_slots(value: object) -> float | Literal["auto"]:
    if isinstance(value, str) and value == "auto":
        return "auto"
    try:
        result = number(value)
    except Refused:
        result = -1.0
    if not 0 <= result < 1:
        raise Refused(f"{show(value)}: expected `auto` or a share of at least 0 and less than 1")
    return result


def affinity_wait(value: object) -> float | Literal["auto"]:
    if isinstance(value, str) and value == "auto":
        return "auto"
    seconds = duration(value)
    if seconds < 0:
        raise Refused(f"{show(value)}: expected at least 0")
    return seconds


def label(value: object) -> str:
    return text(f"{value}" if isinstance(value, int | float) and not isinstance(value, bool) else value)


def secret(value: object) -> SecretStr:
    """Returns a credential, which is never shown. Line breaks around it (mounted files) are dropped."""
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if not isinstance(value, str):
        raise Refused("expected text", "put it in quotes")
    if not _VISIBLE.fullmatch(value.strip()):
        expected = "expected visible ASCII characters without spaces, at most 4096"
        raise Refused(expected, "`${NAME}` takes it from the environment")
    return SecretStr(value.strip())


def hard_to_guess(value: object, characters_min: int) -> SecretStr:
    """Returns a secret that others could try to guess. A short or well-known one is refused."""
    result = secret(value)
    written = result.get_secret_value()
    hint = "`openssl rand -hex 32` makes a good one"
    if len(written) < characters_min or len(set(written)) < DIFFERENT_CHARACTERS_MIN:
        expected = f"at least {characters_min} characters, {DIFFERENT_CHARACTERS_MIN} of them different"
        raise Refused(f"is too easily guessed: expected {expected}", hint)
    if written.lower() in TOKENS_KNOWN:
        raise Refused("is one of the first that attackers try", hint)
    return result


def admin_token(value: object) -> SecretStr:
    return hard_to_guess(value, TOKEN_CHARACTERS_MIN)


def cors_origin(value: object) -> str:
    """Returns a web page's origin, or `*` for any."""
    return "*" if value == "*" else origin(value)


def host(value: object) -> str:
    if value == "*":
        raise Refused("`*` is not a host's name")
    return host_pattern(value)


def slots(value: object) -> int | Literal["auto"]:
    return _auto_or_whole(value, math.inf, "of 1 or more")


def workers(value: object) -> int | Literal["auto"]:
    """Returns a number from 1 to `WORKERS_MAX`, or `auto`."""
    return _auto_or_whole(value, WORKERS_MAX, f"from 1 to {WORKERS_MAX}")


def _auto_or_whole(value: object, most: float, numbers: str) -> int | Literal["auto"]:
    """Returns `auto` or a whole number from 1 to `most`, in words `numbers`. Raises `Refused`."""
    if isinstance(value, str) and value == "auto":
        return "auto"
    try:
        result = whole(value)
    except Refused:
        result = 0
    if not 1 <= result <= most:
        raise Refused(f"{show(value)}: expected `auto` or a whole number {numbers}")
    return result


_SERVED = "`auto`, a list of names, or `{ours: theirs}`"


def served_models(value: object) -> tuple[str, ...] | dict[str, str] | Literal["auto"]:
    """Returns names, or by each name the engine's own one."""
    if isinstance(value, str):
        if value == "auto":
            return "auto"
        raise Refused(f"{show(value)}: expected {_SERVED}", "write it as a list: [NAME]")
    if not isinstance(value, list | tuple | dict) or not value:
        empty = "an empty mapping" if isinstance(value, dict) else "an empty list"
        raise Refused(f"expected {_SERVED}, found {show(value) if value else empty}")
    if len(value) > MODELS_MAX:
        raise Refused(f"{len(value)} names are too many: expected at most {MODELS_MAX}")
    if isinstance(value, dict):
        return {model_name(ours): _engines_name(ours, theirs) for ours, theirs in value.items()}
    if any(isinstance(item, dict) for item in value):
        raise Refused("expected a name, found a mapping", "write `models: {ours: theirs}`, without the dash")
    return tuple(model_name(item) for item in value)


def _engines_name(ours: object, theirs: object) -> str:
    try:
        return model_name(theirs)
    except Refused as refused:
        raise Refused(f"the engine's name for {show(ours)}: {refused}", refused.suggestion) from None


def optional(read: Callable[[object], T]) -> Callable[[object], T | None]:
    """Returns a reader that gives None for nothing or an empty text (`${VAR:-}`)."""
    return lambda value: None if value is None or value == "" else read(value)


def or_empty(read: Callable[[object], str]) -> Callable[[object], str]:
    """Returns a reader that gives an empty text for nothing."""
    return lambda value: "" if value is None or value == "" else read(value)


def items(at_least: int, at_most: int) -> Callable[[object], object]:
    """Returns a check that a list or mapping has `at_least` to `at_most` items as written.

    pydantic's own bound counts only the valid items.
    """

    def bounded(value: object) -> object:
        if isinstance(value, list | tuple | dict) and not at_least <= len(value) <= at_most:
            raise Refused(f"has {len(value)} items; expected {at_least} to {at_most}")
        return value

    return bounded


def write_duration(seconds: float) -> str:
    if seconds >= 3600 and seconds % 3600 == 0:
        return f"{seconds / 3600:.0f}h"
    return f"{seconds * 1000:g}ms" if 0 < seconds < 1 else f"{seconds:g}s"


def write_size(n_bytes: float) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n_bytes and n_bytes % factor == 0:
            return f"{n_bytes / factor:g}{unit}"
    return f"{n_bytes:g}"


_DURATION, _SIZE = ValueKind("duration", write_duration), ValueKind("size", write_size)
_WHOLE = ValueKind("whole number", lambda value: f"{value:.0f}")

band_name = matching(
    re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII),
    "a band's name: expected letters, digits, `-`, `_` and `.`, at most 64",
)
header_name = matching(  # RFC 9110
    re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}", re.ASCII), "a header's name", lower=True
)
origin = matching(  # of a web page, as browsers send it
    re.compile(r"[a-z][a-z0-9+.-]{0,31}://[a-z0-9._\[\]:-]{1,260}", re.ASCII),
    "an origin",
    "for example https://chat.example.com",
    lower=True,
)
host_pattern = matching(  # a host, or `*` for any
    re.compile(r"\*|[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?", re.ASCII),
    "a host's name",
    "for example gateway.example.com, without a port",
    lower=True,
)
variable_name = matching(re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII), "the name of an environment variable")

EngineName = Literal["auto", "vllm", "sglang", "tgi", "llamacpp", "trtllm", "lmdeploy", "ollama", "openai"]
Number = Annotated[float, BeforeValidator(number), ValueKind("number")]
Whole = Annotated[int, BeforeValidator(whole), _WHOLE]
Duration = Annotated[float, BeforeValidator(duration), _DURATION]
Size = Annotated[int, BeforeValidator(size), _SIZE]
Bool = Annotated[bool, BeforeValidator(boolean), ValueKind("true or false")]
Name = Annotated[str, BeforeValidator(name), ValueKind("name")]
ModelName = Annotated[str, BeforeValidator(model_name), ValueKind("model name")]
BandName = Annotated[str, BeforeValidator(band_name), ValueKind("band name")]
BandNameOrEmpty = Annotated[str, BeforeValidator(or_empty(band_name)), ValueKind("band name")]
HeaderName = Annotated[str, BeforeValidator(header_name), ValueKind("header name")]
ClaimName = Annotated[str, BeforeValidator(claim_name), ValueKind("text")]
OptionalClaimName = Annotated[str | None, BeforeValidator(optional(claim_name)), ValueKind("text")]
TenantName = Annotated[str, BeforeValidator(tenant_name), ValueKind("name")]
Weight = Annotated[float, BeforeValidator(weight), ValueKind("number, more than 0")]
KeyNameOrEmpty = Annotated[str, BeforeValidator(or_empty(key_name)), ValueKind("name")]
OptionalMoment = Annotated[float | None, BeforeValidator(optional(moment)), ValueKind("date or time", write_moment)]
KeyHash = Annotated[str, BeforeValidator(key_hash), ValueKind("`sha256:…`")]
Network = Annotated[str, BeforeValidator(network), ValueKind("IP address or network")]
ReservedSlots = Annotated[
    float | Literal["auto"], PlainValidator(reserved_slots), ValueKind("`auto` or a number, at least 0, less than 1")
]
AffinityWait = Annotated[
    float | Literal["auto"],
    PlainValidator(affinity_wait),
    ValueKind("`auto` or a duration, at least 0", write_duration),
]
Label = Annotated[str, BeforeValidator(label), ValueKind("text")]
_LISTEN = "`host:port`, `:port`, `[::1]:port` or `unix:/path`"
Listen = Annotated[str, BeforeValidator(socket_address), ValueKind(_LISTEN)]
Url = Annotated[str, BeforeValidator(endpoint_url), ValueKind("URL")]
OptionalUrl = Annotated[str | None, BeforeValidator(optional(endpoint_url)), ValueKind("URL")]
Slots = Annotated[int | Literal["auto"], PlainValidator(slots), ValueKind("`auto` or a whole number ≥ 1")]
Workers = Annotated[
    int | Literal["auto"], PlainValidator(workers), ValueKind(f"`auto` or a whole number from 1 to {WORKERS_MAX}")
]
ServedModels = Annotated[
    tuple[str, ...] | dict[str, str] | Literal["auto"], PlainValidator(served_models), ValueKind(_SERVED)
]
OptionalListen = Annotated[str | None, BeforeValidator(optional(socket_address)), ValueKind(_LISTEN)]
OptionalFile = Annotated[str | None, BeforeValidator(optional(file)), ValueKind("file")]
OptionalHost = Annotated[str | None, BeforeValidator(optional(host)), ValueKind("host name or IP address")]
OptionalSecret = Annotated[SecretStr | None, BeforeValidator(optional(secret)), ValueKind("secret text")]
OptionalAdminToken = Annotated[SecretStr | None, BeforeValidator(optional(admin_token)), ValueKind("secret text")]
AdminToken = Annotated[SecretStr, BeforeValidator(admin_token), ValueKind("secret text")]
Origin = Annotated[str, BeforeValidator(origin), ValueKind("origin")]
CorsOrigin = Annotated[str, BeforeValidator(cors_origin), ValueKind("origin or `*`")]
HostPattern = Annotated[str, BeforeValidator(host_pattern), ValueKind("host name or `*`")]
VariableName = Annotated[str, BeforeValidator(variable_name), ValueKind("variable's name")]
OptionalDuration = Annotated[float | None, BeforeValidator(optional(duration)), _DURATION]
OptionalSize = Annotated[int | None, BeforeValidator(optional(size)), _SIZE]
OptionalWhole = Annotated[int | None, BeforeValidator(optional(whole)), _WHOLE]
OptionalNumber = Annotated[float | None, BeforeValidator(optional(number)), ValueKind("number")]
OptionalWeight = Annotated[float | None, BeforeValidator(optional(weight)), ValueKind("number, more than 0")]
OptionalModelName = Annotated[str | None, BeforeValidator(optional(model_name)), ValueKind("model name")]
