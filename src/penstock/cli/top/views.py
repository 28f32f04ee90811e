"""The gateway's state in a terminal: parts of the page as tables of 80 columns, or all of them (`top`).

Clients choose names, so every text is shown without markup, its unprintable characters replaced.
"""

from __future__ import annotations

import time
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.core.values.catalogue import EndpointState
from penstock.gateway.admin.phrases import count, printable, seconds

MARKS = {"ok": ("● ok", "bold blue"), "busy": ("▲ busy", "bold yellow"), "bad": ("■ attention", "bold red")}
STOPPED = ("◆ stopped", "bold magenta")  # by operators, no fault
DOUBTS_SHOWN = 3  # lines of `status` and `top`
ID_CHARS_MAX = 64  # longer than a UUID; a client may choose longer ones
WIDE_FROM = 110  # columns in which a request's row fits with a UUID
EIGHTHS = " ▏▎▍▌▋▊▉█"
_TONES = {"ok": ("●", ""), "busy": ("▲", "bold yellow"), "bad": ("■", "bold red"), "hand": ("◆", "bold magenta")}

State = dict[str, Any]


def plain(value: object, chars_max: int = 120) -> str:
    return printable(str(value), chars_max)


def short(name: object, width: int) -> str:
    """Returns a name; one that is too long loses its middle, because often only its end tells it from another."""
    whole, end = plain(name, 256), width // 2
    return whole if len(whole) <= width else f"{whole[: width - end - 1]}…{whole[-end:]}"


def headline(state: State) -> Text:
    mark, style = STOPPED if state.get("by_operators") else MARKS.get(state["tone"], MARKS["bad"])
    words, lead = plain(state["headline"], 900), len(state["lead"])
    said = Text.assemble((mark, style), " ", (words[:lead], "bold"), words[lead:])
    return said.append(f" → {plain(state['advice'], 300)}") if state["advice"] else said


def numbers(state: State) -> Text:
    now, most, told = state["now"], state.get("waiting_max"), state["lately"]
    bound = "" if most is None else f" of at most {most:,}"
    p50_s, p99_s = told["first_token_p50_s"], told["first_token_p99_s"]
    first = "" if p50_s is None else f", first token p50 {seconds(p50_s)}, p99 {seconds(p99_s)}"
    if (worst := told["worst"]) is not None and worst["within_share"]:
        p99_s = worst["first_token_p99_s"]
        few = f"p50 of {count(worst['streams'], 'stream')} {seconds(worst['first_token_p50_s'])}"
        late = few if p99_s is None else f"p99 {seconds(p99_s)}"
        first += f" · last minute, worst within its share: {late} of {plain(worst['tenant'], 30)}"
    return Text(
        f"waiting {state['waiting']:,}{bound} · running {state['running']:,}"
        f" · slots {state['slots_taken']:,} of {state['slots']:,} taken"
        f" · sent {now.get('sent_per_s', 0):.1f}/s · refused {now.get('refused_per_s', 0):.1f}/s"
        f" · last 10 s: {now.get('tokens_per_s', 0):,.0f} tokens/s{first}"
    )


def lately(state: State, most: int = 0) -> list[Text]:
    """The last minute in a line, followed by the most frequent failures and their tenants."""
    told = state["lately"]
    line = Text(
        f"last minute: ended {told['ended']:,} · refused {told['refused']:,} · evicted {told['evicted']:,}"
        f" · broken {told['broken']:,} · failed {told['failed']:,} · retried {told['retried']:,}"
    )
    rows = [
        Text(plain(f"  {row['count']:,} {row['tenant'] or 'unknown'}: {row['what']}{_at(row)} ({row['reason']})"))
        for row in told["rows"][:most]
    ]
    more = len(told["rows"]) - most + told["rows_more"]
    return [line, *rows, *([Text(f"  and {more} more kinds")] if most and more > 0 else [])]


def _at(row: State) -> str:
    return f" at {row['endpoint']}" if row["endpoint"] else ""


def models(state: State, most: int) -> Table:
    table = _table("model", ">wait", ">run", ">slots", ">oldest", ">p50 10s", ">p99", ">up", "why they wait")
    for model in state["models"][:most]:
        table.add_row(
            _name(model["name"], 20),
            _waiting(model["waiting"]),
            str(model["running"]),
            f"{min(model['taken'], model['slots'])}/{model['slots']}",
            seconds(model["oldest_wait_s"]) if model["waiting"] else "",
            *("–" if model[key] is None else seconds(model[key]) for key in ("wait_p50_s", "wait_p99_s")),
            f"{model['up']}/{model['endpoints']}",
            (model["cause"] or "") if model["waiting"] else "",
        )
    return _more(table, state["models"], most, state["models_more"])


def tenants(state: State, most: int) -> Table:
    table = _table("tenant", "band", ">wait", ">oldest", ">run", ">got 1m", ">1st p50", ">p99", "in its band")
    for flow in state["tenants"][:most]:
        table.add_row(
            _name(flow["tenant"], 20),
            _name(flow["band"], 11),
            _waiting(flow["waiting"]),
            seconds(flow["oldest_wait_s"]) if flow["waiting"] else "",
            str(flow["running"]),
            f"{flow['share_of_all']:.0%}",
            *("–" if flow[key] is None else seconds(flow[key]) for key in ("first_token_p50_s", "first_token_p99_s")),
            plain(flow["within"], 30),
        )
    return _more(table, state["tenants"], most, state["tenants_more"])


def endpoints(state: State, most: int) -> Table:
    table = _table("endpoint", "state", ">slots", ">KV/ceil", "", ">ms/tok", ">wait", ">age", "closed")
    for one in state["endpoints"][:most]:
        usage, age_s = one["kv_usage_believed"], one["observed_s_ago"]
        table.add_row(
            _name(one["name"], 18),
            _state("drained" if one["state"] == "draining" and not one["leases"] else one["state"], one["role"]),
            f"{one['leases']}/{one['slots']}",
            "–" if usage is None else f"{usage * 100:.0f}/{state['kv_usage_ceiling']:.0%}",
            _bar(usage or 0.0, 4),
            f"{one['time_per_output_token_s'] * 1000:.1f}",
            "–" if one["engine_waiting"] is None else f"{one['engine_waiting']:.0f}",
            "–" if age_s is None else seconds(age_s),
            one["closed"] or "",
        )
    return _more(table, state["endpoints"], most, state["endpoints_more"])


def group(share: State) -> Text:
    """The leader of a group, since when, and the election."""
    who = {
        "leads": f"{plain(share['name'], 40)} decides",
        "stands_by": f"{plain(share['decider'], 60)} decides, {plain(share['name'], 40)} stands by",
        "alone": f"{plain(share['name'], 40)} decides alone",
    }.get(share["role"], "no leader")
    since = f"for {seconds(share['since_s'])}, epoch {share['epoch']}"
    line = Text(f"{who} {since} · {share['gateways']} gateways · by {plain(share['election'], 80)}")
    if share["trouble"]:
        line.append(f" · {plain(share['trouble'], 200)}", style="yellow")
    return line


def sessions(rows: list[State], width: int) -> Table:
    """Returns agents' sessions. Names are whole, because `sessions show` takes them; columns that do not fit beside
    them into `width` are left out, those that say least first."""
    columns: dict[str, list[Text | str]] = {
        "session": [Text(plain(row["session"], 200), overflow="fold") for row in rows],
        "tenant": [_name(row["tenant"], 14) for row in rows],
        "state": ["stopped" if row["stopped"] else row["state"] for row in rows],
        ">turns": [f"{row['turns']:,}" for row in rows],
        ">tokens": [f"{row['tokens']:,}" for row in rows],
        ">waits": ["" if row["waits_s"] is None else seconds(row["waits_s"]) for row in rows],
        ">about": ["" if row["expected_s"] is None else seconds(row["expected_s"]) for row in rows],
        "endpoint": [_name(_place(row), 18) for row in rows],
    }
    widths = {
        name: 1 + max(cell_len(str(cell)) for cell in (name.lstrip(">"), *cells)) for name, cells in columns.items()
    }
    for name in (">about", ">turns", "endpoint", ">waits", ">tokens", "tenant"):
        if sum(widths.values()) > width:
            del widths[name]
    table = _table(*widths)
    for cells in zip(*[columns[name] for name in widths], strict=True):
        table.add_row(*cells)
    table.columns[0].max_width, table.columns[0].no_wrap = None, False
    return table


def _place(row: State) -> str:
    return str(row["endpoint"] or (f"({row['origin']})" if row["origin"] else ""))


def edges(state: State) -> Table:
    last = "epoch" if state.get("share") else "starts"
    table = _table("worker", "where", ">up", ">requests", ">clients", ">CPU", ">link", ">lag", f">{last}")
    for one in state["edges"]:
        table.add_row(
            _name(one["name"], 20 if state.get("share") else 12),
            plain(one["where"], 24),
            Text("away", style="bold red") if one["up_s"] is None else seconds(one["up_s"]),
            f"{one['requests']:,}",
            f"{one['connections']:,}",
            f"{one['cpu']:.0%}",
            f"{one['link_s'] * 1000:.1f} ms",
            f"{one['lag_s'] * 1000:.1f} ms",
            str(one[last]),
        )
    return table


def doubts(state: State, most: int) -> list[Text]:
    """Endpoints whose gauges are not trusted, and why; those without gauges are left to `doctor`."""
    told = [one for one in state["endpoints"] if one["gauges"] not in ("believed", "none")]
    return [Text(f"{plain(one['name'], 40)}: {plain(one['gauges_why'])}", style="yellow") for one in told[:most]]


def requests(state: State, which: str, most: int, width: int, *, grouped: bool = False) -> Table:
    """Returns the requests in one state. Ids are whole, because `explain` and `queue bump` take them.

    `grouped`: rows that are alike are one, with the id of the first. Below `WIDE_FROM` columns a row has no more than
    fits beside an id.
    """
    wide = width >= WIDE_FROM
    rows = state["requests"][which]
    alike = _alike(rows) if grouped else [(1, row, _why(row)) for row in rows]
    shown = {
        which: True,
        ">": grouped,
        "tenant": True,
        "band": wide or not grouped,
        "state": wide,
        ">waited": True,
        "why": True,
        ">in": wide,
        ">out": wide,
    }
    table = _table(*[name for name, is_shown in shown.items() if is_shown])
    for number, row, why in alike[:most]:
        tokens = [str(row[key]) if number == 1 else "" for key in ("prompt_tokens", "output_tokens")]
        cells = (
            _name(row["id"], ID_CHARS_MAX),
            f"+{number - 1}" if number > 1 else "",
            _name(row["tenant"], 14),
            _name(row["band"], 11),
            row["state"],
            seconds(row["waited_s"]),
            _name(why, 20 if wide else 14),
            *tokens,
        )
        table.add_row(*[cell for cell, is_shown in zip(cells, shown.values(), strict=True) if is_shown])
    table.columns[0].max_width = None
    beyond = state.get("requests_more", max(0, state.get(which, len(rows)) - len(rows)))
    return _more(table, rows, sum(number for number, _, _ in alike[:most]), beyond)


def _why(row: State) -> str:
    return row["cause"] or row["reason"] or row["endpoint"] or ""


def _alike(rows: list[State]) -> list[tuple[int, State, str]]:
    """Returns how many rows have one tenant, band, state and cause, the first of them, and the cause."""
    groups: dict[tuple[str, ...], list[Any]] = {}
    for row in rows:
        why = _why(row)
        key = (row["tenant"], row["band"], row["state"], why)
        groups.setdefault(key if why else (*key, row["id"]), [0, row, why])[0] += 1
    return [(number, row, why) for number, row, why in groups.values()]


def batches(state: State, most: int) -> Table:
    table = _table("batch", "tenant", "status", ">done", "", ">failed", ">done in", ">window")
    for one in state["batches"][:most]:
        end, left = one["estimated_end"], seconds(max(0.0, one["deadline"] - state["at"]))
        table.add_row(
            _name(one["id"], 18),
            _name(one["tenant"], 14),
            plain(one["status"], 12),
            f"{one['completed']:,}/{one['total']:,}",
            _bar((one["completed"] + one["failed"]) / max(one["total"], 1), 4),
            f"{one['failed']:,}",
            "–" if end is None else seconds(max(0.0, end - state["at"])),
            Text(f"{left}, missed", style="bold red") if one["misses_window"] else left,
        )
    return _more(table, state["batches"], most, 0)


def events(state: State, most: int) -> Group:
    lines = [
        Text(time.strftime("%H:%M:%S ", time.localtime(event["at"])) + plain(event["text"], 200), overflow="ellipsis")
        for event in state["events"][:most]
    ]
    for line in lines:
        line.no_wrap = True
    return Group(*lines)


def screen(state: State, width: int, height: int | None) -> RenderableType:
    """Returns the whole screen. With a `height`, the lists share its lines, and requests get the rest."""
    lines = 60 if height is None else height
    sentence = headline(state)
    spent = (
        1
        + len(sentence.wrap(Console(width=width), width))
        + 1
        + len(lately(state)[0].wrap(Console(width=width), width))
    )
    shown = {
        "models": min(len(state["models"]), 4),
        "tenants": min(len(state["tenants"]), 8),
        "endpoints": min(len(state["endpoints"]), 8),
        "batches": min(len(state["batches"]), 3),
        "events": min(len(state["events"]), 3),
    }
    spent += bool(state["batches"]) + (len(state["edges"]) + 1 if state.get("edges") else 0)
    spent += bool(state.get("share"))
    while sum(shown.values()) + spent + 8 > lines and max(shown.values()) > 1:
        longest = max(shown, key=shown.__getitem__)
        shown[longest] -= 1
    which = next((name for name in ("waiting", "running") if state["requests"][name]), "ended")
    left = lines - spent - sum(shown.values()) - 8
    parts: list[RenderableType] = [sentence, numbers(state), *lately(state), models(state, shown["models"])]
    if state["tenants"]:
        parts.append(tenants(state, shown["tenants"]))
    parts.append(endpoints(state, shown["endpoints"]))
    parts += doubts(state, DOUBTS_SHOWN)
    if state.get("share"):
        parts.append(group(state["share"]))
    if state.get("edges"):
        parts.append(edges(state))
    if state["batches"]:
        parts.append(batches(state, shown["batches"]))
    if left > 1:
        parts.append(requests(state, which, left, width, grouped=True))
    parts.append(events(state, shown["events"]))
    return Group(*parts)


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", expand=False, show_edge=False)
    for column in columns:
        right = column.startswith(">")
        table.add_column(
            column.lstrip(">"), justify="right" if right else "left", no_wrap=True, overflow="ellipsis", max_width=24
        )
    return table


def _more(table: Table, rows: list[Any], most: int, beyond: int) -> Table:
    hidden = max(0, len(rows) - most) + beyond
    if hidden:
        table.columns[0].header = f"{table.columns[0].header} (+{hidden:,})"
    return table


def _name(value: object, width: int) -> Text:
    return Text(short(value, width), no_wrap=True, overflow="ellipsis")


def _state(state: str, role: str) -> Text:
    only = "" if role == "both" else f", {plain(role, 8)}"
    tone = next((known.tone for known in EndpointState if known == state), "hand" if state == "drained" else "bad")
    mark, style = _TONES[tone]
    return Text(f"{mark} {plain(state, 12)}{only}", style=style)


def _waiting(count: int) -> Text:
    return Text(f"{count:,}", style="bold yellow" if count else "")


def _bar(part: float, width: int) -> str:
    eighths = round(min(max(part, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (EIGHTHS[rest] if rest else "")).ljust(width)
