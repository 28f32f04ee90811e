"""The endpoints that are open to a request's band and have room for it.

`admission.py` has the conditions; here they become the `Verdict` of a band on an endpoint, in one place. The bands keep
it (`queueing/band.py`), the pump and the explanation of a wait read it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from penstock.core.dispatch import admission
from penstock.core.dispatch.backfill import Backfill
from penstock.core.dispatch.prefill_stagger import PrefillStagger
from penstock.core.dispatch.under_share import UnderShare
from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.endpoints.pool import Pool
from penstock.core.endpoints.roles import Role
from penstock.core.queueing.band import UNBOUNDED, Band, Verdict
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.queues import Queues
from penstock.core.queueing.quotas import Quotas
from penstock.core.routing.affinity_wait import AffinityWait
from penstock.core.values.catalogue import Cause
from penstock.core.values.settings import PASSED_MAX, AdmissionSettings, BandSettings

# Not busy with others' requests.
_AWAY = (Cause.NO_BACKEND, Cause.PAUSED, Cause.HELD, Cause.EJECTED, Cause.STUCK)


class CandidateFilter:
    """Asks endpoints for requests."""

    def __init__(
        self,
        queues: Queues,
        pool: Pool,
        settings: AdmissionSettings,
        *,
        quotas: Quotas,
        under_share: UnderShare,
        backfill: Backfill,
        affinity: AffinityWait,
        stagger: PrefillStagger,
        look_again: Callable[[Endpoint, float], None],
    ) -> None:
        self._queues = queues
        self._pool = pool
        self.settings = settings
        self._quotas = quotas
        self._under_share = under_share
        self._backfill = backfill
        self._affinity = affinity
        self._stagger = stagger
        self._look_again = look_again

    # --- open to a band -----------------------------------------------------------------------------------------

    def closed(self, endpoint: Endpoint, band: BandSettings, now: float) -> Cause | None:
        """Returns why an endpoint is closed to a band; None if it is open."""
        return self._pool.unhealthy(endpoint, now) or admission.closed(endpoint, band, self.settings, now=now)

    def open_to(self, endpoint: Endpoint, entry: Entry, now: float) -> bool:
        """True if an endpoint would take this very request now."""
        band = self._queues.bands[entry.band]
        self.look(band, now)
        verdict = band.open.get(endpoint)
        return verdict is not None and admission.misfit(entry, endpoint, verdict.room, now=now) is None

    def judge(self, endpoint: Endpoint, band: BandSettings, now: float) -> Verdict:
        """Returns the verdict of a band on an endpoint as of `now`. Changes nothing."""
        settings, ledger = self.settings, endpoint.ledger
        cause = self._pool.unhealthy(endpoint, now)
        # An idle one is open to a request of any size if it has slots, and remains so whatever time does.
        slots = ledger.limit.slots
        idle = cause is None and slots * band.ceiling > 0 and ledger.idle(now)
        if cause is None and not idle:
            cause = admission.closed(endpoint, band, settings, now=now)
        until_s = math.inf if idle else admission.holds_until_s(cause, endpoint, band, settings, now=now)
        if now < endpoint.health.ejected_until_s:
            until_s = min(until_s, self._pool.ejections_change_s(now))
        if cause is not None:
            return Verdict(cause, until_s)
        # Slots are counted at decode endpoints: pure prefill has none to reserve.
        answers = endpoint.role is not Role.PREFILL
        if idle:
            return Verdict(None, until_s, free_slots=float(slots) if answers else 0.0, idle=True)
        free_slots = slots - ledger.load(now) if answers else 0.0
        room = admission.room(endpoint, settings, tried=ledger.page.closed_s is not None, now=now)
        over_share = admission.over_share_room(room, endpoint)
        return Verdict(None, until_s, free_slots=free_slots, room=room, room_over_share=over_share)

    def look(self, band: Band, now: float) -> None:
        """Judge the endpoints that were touched, and those whose verdicts time may have changed."""
        if now >= band.holds_until_s:
            band.touch_expired(now)
        if not band.unchecked:
            return
        for endpoint in band.unchecked:
            endpoint.touched = False
            verdict = self.judge(endpoint, band.settings, now)
            asks = verdict.cause is not None or endpoint.ledger.page.closed_s is not None
            if asks and self._ask_page(endpoint, band, verdict.cause, now):
                verdict = self.judge(endpoint, band.settings, now)
            cause = verdict.cause
            away = cause is not None and cause in _AWAY
            if away != (endpoint in band.away):
                if away:
                    band.away[endpoint] = None
                else:
                    del band.away[endpoint]
                band.holds_changed = True
            band.judged(endpoint, verdict)
            if not verdict.idle and (cause is not None or verdict.room != UNBOUNDED):
                self._look_again(endpoint, verdict.until_s)
        band.unchecked.clear()

    def _ask_page(self, endpoint: Endpoint, band: Band, cause: Cause | None, now: float) -> bool:
        """Note whether nothing but its page closes an endpoint; then a request is sent all the same, in time.

        Returns True if that is news, for other bands, too.
        """
        page = endpoint.ledger.page
        before_s = page.closed_s
        if admission.by_page(endpoint, band.settings, self.settings, cause, now=now):
            page.closes(now)
        elif cause is None and endpoint.ledger.load(now) > 0:
            page.opens()  # an idle one takes a request whatever its memory: that shows nothing
        if page.closed_s == before_s:
            return False
        for other in self._queues.bands:
            if other is not band:
                other.touch(endpoint)
        return True

    def away(self, model: str, band: Band) -> bool:
        """True if no endpoint for the model takes anything, as far as is known: all are down, drained, or back off."""
        for endpoint in self._pool:
            if endpoint not in band.away and endpoint.serves(model) and endpoint.role is not Role.PREFILL:
                return False
        return True

    # --- room for a request -------------------------------------------------------------------------------------

    def anybody_serves(self, model: str, endpoints: list[Endpoint]) -> bool:
        """True if any of the endpoints serves the model."""
        for endpoint in endpoints:  # the first one does, usually
            if endpoint.serves(model):
                return True
            if self._pool.uniform:
                break
        return False

    def serving(self, model: str, endpoints: list[Endpoint]) -> list[Endpoint]:
        """Returns those of the endpoints that serve the model."""
        if self._pool.uniform:
            return endpoints if endpoints and endpoints[0].serves(model) else []
        return [endpoint for endpoint in endpoints if endpoint.serves(model)]

    def fitting(self, entry: Entry, endpoints: list[Endpoint], now: float) -> list[Endpoint]:
        """Returns those of the open `endpoints` with room for this very request."""
        if self._quotas.capped and self._quotas.at_limit(entry.accounts):
            return []
        over_share = self._under_share.is_over_share(entry, now)
        if self._pool.roles.any:
            endpoints = self._computing(entry, endpoints, now)
        fitting = self.serving(entry.model, endpoints)
        band, avoid = self._queues.bands[entry.band], bool(entry.retry.excluded or entry.only)
        if band.busy or avoid:
            fitting = self._large_enough(entry, fitting, band, now, over_share=over_share, avoid=avoid)
        if over_share and fitting and entry.backfilled < PASSED_MAX:
            fitting = self._stagger.allowed(entry, fitting, now)
        return self._affinity.allowed(entry, fitting, now) if entry.affinity.may_wait else fitting

    def _large_enough(
        self, entry: Entry, endpoints: list[Endpoint], band: Band, now: float, *, over_share: bool, avoid: bool
    ) -> list[Endpoint]:
        prompt_tokens = entry.prompt_tokens
        tokens = prompt_tokens + entry.output_tokens
        cached = entry.cached_tokens > 0
        fitting: list[Endpoint] = []
        for endpoint in endpoints:
            verdict = band.open[endpoint]
            prefill_room, kv_room = verdict.room_over_share if over_share else verdict.room
            if prompt_tokens > prefill_room and (not cached or entry.uncached_at(endpoint.index) > prefill_room):
                continue
            if tokens > kv_room and admission.kv_tokens(entry, endpoint) > kv_room:
                continue
            if avoid and entry.excludes(endpoint.name, now):
                self._look_again(endpoint, entry.excluded_until_s(endpoint.name))
            else:
                fitting.append(endpoint)
        return fitting

    # --- roles --------------------------------------------------------------------------------------------------

    def _computing(self, entry: Entry, endpoints: list[Endpoint], now: float) -> list[Endpoint]:
        """Returns the endpoints that may compute its prompt: prefill ones only if a decode endpoint is available."""
        roles, model = self._pool.roles, entry.model
        computing = [e for e in endpoints if roles.computes(e, model, whole=entry.whole)]
        if any(e.role is Role.PREFILL for e in computing) and not self.partners(entry, now):
            return [e for e in computing if e.role is not Role.PREFILL]
        return computing

    def partners(self, entry: Entry, now: float) -> list[Endpoint]:
        """Returns the decode endpoints that have room for a divided request now."""
        model, over_share, found = entry.model, self._under_share.is_over_share(entry, now), []
        for endpoint, verdict in self._queues.bands[entry.band].open.items():
            if endpoint.role is not Role.DECODE or endpoint in self._backfill.reserved or not endpoint.serves(model):
                continue
            if entry.estimated_tokens > (verdict.room_over_share if over_share else verdict.room)[1]:
                continue
            if entry.excludes(endpoint.name, now):
                self._look_again(endpoint, entry.excluded_until_s(endpoint.name))
            else:
                found.append(endpoint)
        return found
