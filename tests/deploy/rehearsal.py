"""What goes wrong, for real, and a real Prometheus whose rules see it: each alert fires once, for its own gateway only.

    make rehearse-alerts

Every incident has a gateway and engines of its own; all begin at the same time and end half-way. The rules are those of
deploy/prometheus/alerts.yml with their times divided by 30 (5m are 10s), their thresholds as they stand. Two minutes.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.deploy.programs import TOOLS
from tests.deploy.site import Process, Prometheus, Site
from tests.ports import free_port

ALERTS = Path("deploy/prometheus/alerts.yml")
FASTER = 30
BEFORE_S, UNDER_WAY_S, AFTER_S = 10.0, 60.0, 45.0
APART_S = 4.0  # two times that an alert fires are one where no more lies between them: a scrape may be late

Act = Callable[[], object]
SECONDS = {"s": 1, "m": 60, "h": 3600}


class Incident(NamedTuple):
    name: str
    gateway: Process
    alerts: set[str]
    begin: Act
    end: Act = lambda: None
    meanwhile: Act | None = None  #: again and again while it is under way, a second each time at most


def faster(rules: str) -> str:
    """The rules with their times divided."""

    def shorter(found: re.Match[str]) -> str:
        return f"{found[1]}{int(found[2]) * SECONDS[found[3]] // FASTER}s{found[4]}"

    changed = re.sub(r"(\[)(\d+)([smh])(\])", shorter, rules)
    return re.sub(r"(for: )(\d+)([smh])()", shorter, changed)


def incidents(site: Site) -> list[Incident]:
    """All of them, ready to begin."""
    made: list[Incident] = []

    def gateway(name: str, engines: Sequence[Process], slots: int = 4, **settings: Any) -> Process:
        listed = [{"url": engine.url, "slots": slots} for engine in engines]
        return site.gateway({"endpoints": listed, "health": {"eject_after": 100000}, "store": False, **settings}, name)

    def add(name: str, told: Process, alerts: str, begin: Act, **more: Act) -> None:
        made.append(Incident(name, told, set(alerts.split()), begin, **more))

    engine = site.engine()
    good = gateway("all is well", [engine])
    add("all is well", good, "", lambda: site.caller(good, 2, 0.2))

    gone = gateway("gateway killed", [engine])
    add("gateway killed", gone, "PenstockDown", gone.end, end=gone.begin)

    one, other = site.engine(), site.engine()
    fewer = gateway("an engine killed", [one, other])
    add("an engine killed", fewer, "PenstockEndpointDown", one.end, end=one.begin)

    only = site.engine()
    none = gateway("the only engine killed", [only])
    add("the only engine killed", none, "PenstockNoEndpointUp PenstockEndpointDown", only.end, end=only.begin)

    slow = site.engine("--step-ms", "1000")
    long = gateway("a slow engine", [slow], slots=1, queue={"max_wait": "5m"})
    add("a slow engine", long, "PenstockLongWait", lambda: site.caller(long, 2, 60.0 + AFTER_S, max_tokens=60))

    small = gateway("flood", [site.engine("--step-ms", "20")], slots=1, queue={"max_requests": 2})
    flood: list[Act] = []
    add(
        "flood",
        small,
        "PenstockRefusing",
        lambda: flood.append(site.caller(small, 10, 0.1).let_go),
        end=lambda: [stop() for stop in flood],
    )

    late = gateway("waits in vain", [site.engine("--step-ms", "300")], slots=1, queue={"max_wait": "1s"})
    vain: list[Act] = []
    add(
        "waits in vain",
        late,
        "PenstockGivenUp",
        lambda: vain.append(site.caller(late, 6, 0.1, max_tokens=20).let_go),
        end=lambda: [stop() for stop in vain],
    )

    broken = site.engine()
    failing = gateway("streams broken off", [broken])
    site.caller(failing, 3, 0.1, stream=True, max_tokens=40)
    add(
        "streams broken off",
        failing,
        "PenstockFailing",
        lambda: broken.fault("abort", after_bytes=1500),
        end=lambda: broken.fault("none"),
    )

    busy, willing = site.engine(), site.engine()
    back = gateway("an engine refuses", [busy, willing], slots=2)
    site.caller(back, 8, 0.02)
    # Not all it is sent, or the gateway sends it nothing more: that would be PenstockEndpointDown.
    add("an engine refuses", back, "PenstockRequeueing", lambda: None, meanwhile=lambda: busy.fault("busy", count=3))

    silent = site.engine()
    blind = gateway("an engine tells nothing", [silent])
    add(
        "an engine tells nothing",
        blind,
        "PenstockBlind",
        lambda: silent.fault("metrics_hang"),
        end=lambda: silent.fault("none"),
    )

    starved = gateway("no CPU", [engine])

    def starve() -> None:
        """The loop measures itself every half a second: let go for less, each time it is late."""
        starved.send(signal.SIGSTOP)
        time.sleep(0.5)
        starved.send(signal.SIGCONT)
        time.sleep(0.25)

    add("no CPU", starved, "PenstockLoopLag", lambda: None, meanwhile=starve)

    place = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    share = {"secret": "between-these-two-gateways", "elect": {"static": place[0]}, "alone_after": "1s"}
    decides = gateway("decides", [engine], share={"listen": place[0], **share})
    cut = gateway("its decider killed", [engine], share={"listen": place[1], **share})
    add("its decider killed", cut, "PenstockAlone", decides.end, end=decides.begin)

    spends = gateway("a budget is spent", [engine], identity={"anonymous": {"limits": {"tokens_per_day": 500}}})
    spending: list[Act] = []

    def lift() -> None:
        spending[0]()
        site.write("a budget is spent", {"endpoints": [{"url": engine.url}], "store": False})
        spends.send(signal.SIGHUP)

    add(
        "a budget is spent",
        spends,
        "PenstockBudgetSpent",
        lambda: spending.append(site.caller(spends, 4, 0.1, max_tokens=20).let_go),
        end=lift,
    )

    taken = site.folder / "taken"  # by a file
    taken.write_text("")
    homeless = gateway("no place for the ledger", [engine], store=True, state_dir=str(taken))
    add("no place for the ledger", homeless, "PenstockLedgerNotWritten", lambda: None, end=taken.unlink)

    wrong = gateway("bad settings", [engine])

    def settings(**more: Any) -> None:
        site.write("bad settings", {"endpoints": [{"url": engine.url}], "store": False, **more})
        wrong.send(signal.SIGHUP)

    add("bad settings", wrong, "PenstockReloadFailed", lambda: settings(queue={"max_wait": "soon"}), end=settings)
    return made


def rollout(site: Site) -> Incident:
    """Two gateways of which one has not followed. All others differ, too: these have a Prometheus of their own."""
    settings: dict[str, Any] = {"endpoints": [{"url": "http://127.0.0.1:9"}], "store": False}
    site.gateway(settings, "rollout-1", listen="127.0.0.1:0")  # where they listen is a setting, too
    second = site.gateway(settings, "rollout-2", listen="127.0.0.1:0")

    def reload(**more: Any) -> None:
        site.write("rollout-2", {**settings, **more})
        second.send(signal.SIGHUP)

    changed = {"max_wait": "20s"}
    return Incident(
        "a rollout that is stuck", second, {"PenstockSettingsDiffer"}, lambda: reload(queue=changed), reload
    )


def under_way(all_of_them: list[Incident], for_s: float) -> None:
    end_s = time.monotonic() + for_s
    acts = [incident.meanwhile for incident in all_of_them if incident.meanwhile is not None]
    while time.monotonic() < end_s:
        for act in acts:
            act()


def fired(prometheus: Prometheus, begin_s: float, end_s: float) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """For each gateway and alert, from when to when it fired."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for series in prometheus.over('ALERTS{alertstate="firing"}', begin_s, end_s):
        key = (series["metric"].get("instance", ""), series["metric"]["alertname"])
        times = found.setdefault(key, [])
        for at_s, _ in series["values"]:
            if times and at_s - times[-1][1] <= APART_S:
                times[-1] = (times[-1][0], at_s)
            else:
                times.append((at_s, at_s))
    return found


def told(incident: Incident, seen: dict[str, list[tuple[float, float]]], begun_s: float, end_s: float) -> list[str]:
    """A line for each alert of one incident, those that should not be and those that are missing, too."""
    lines = []
    for alert in sorted(incident.alerts | seen.keys()):
        times = seen.get(alert, [])
        good = alert in incident.alerts and len(times) == 1 and times[0][1] < end_s - APART_S
        when = ", ".join(f"{first - begun_s:+.0f} s to {last - begun_s:+.0f} s" for first, last in times)
        lines.append(f"{'ok ' if good else 'BAD'} {incident.name:24} {alert:24} {when or 'never fired'}")
    return lines or [f"ok  {incident.name:24} no alert"]


def rehearse(site: Site) -> list[str]:
    rules = yaml.safe_load(faster(ALERTS.read_text()))
    (group,) = rules["groups"]
    alone = [rule for rule in group["rules"] if rule["alert"] == "PenstockSettingsDiffer"]
    others = [rule for rule in group["rules"] if rule not in alone]
    all_of_them = incidents(site)
    stuck = rollout(site)
    prometheus = site.prometheus(
        {incident.name: incident.gateway for incident in all_of_them},
        yaml.safe_dump({"groups": [{**group, "rules": others}]}),
    )
    differ = site.prometheus(
        {"rollout-1": site.gateways["rollout-1"], "rollout-2": stuck.gateway},
        yaml.safe_dump({"groups": [{**group, "rules": alone}]}),
    )
    covered = set().union(*(incident.alerts for incident in [*all_of_them, stuck]))
    assert covered == {rule["alert"] for rule in group["rules"]}, "each alert has an incident"
    first_s = time.time()
    say(f"{len(all_of_them) + 1} incidents are ready; all is well for {BEFORE_S:g} s")
    time.sleep(BEFORE_S)
    begun_s = time.time()
    say(f"they begin, and go on for {UNDER_WAY_S:g} s")
    for incident in [*all_of_them, stuck]:
        incident.begin()
    under_way(all_of_them, UNDER_WAY_S)
    say(f"they end; the alerts have {AFTER_S:g} s to end, too")
    for incident in [*all_of_them, stuck]:
        incident.end()
    time.sleep(AFTER_S)
    end_s = time.time()
    found = fired(prometheus, first_s, end_s)
    lines = []
    for incident in all_of_them:
        seen = {alert: times for (name, alert), times in found.items() if name == incident.name}
        lines += told(incident, seen, begun_s, end_s)
    seen = {alert: times for (_, alert), times in fired(differ, first_s, end_s).items()}
    return [*lines, *told(stuck, seen, begun_s, end_s)]


def say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {words}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="leave the logs where they are, and say where")
    args = parser.parse_args()
    if shutil.which("prometheus") is None and shutil.which("prometheus", path=TOOLS) is None:
        say("prometheus is not here; scripts/deploy/install brings it")
        return 2
    folder = Path(tempfile.mkdtemp(prefix="penstock-rehearsal-"))
    site = Site(folder)
    try:
        lines = rehearse(site)
    finally:
        site.close()
        if args.keep:
            say(f"logs: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(lines))
    return int(any(line.startswith("BAD") for line in lines))


if __name__ == "__main__":
    sys.exit(main())
