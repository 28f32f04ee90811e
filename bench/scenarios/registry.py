"""The named scenarios."""

from __future__ import annotations

from bench.scenarios import (
    autoscale as scenario_autoscale,
)
from bench.scenarios import (
    bands,
    failover,
    isolation,
    shares,
    trouble,
)
from bench.scenarios import (
    deadlines as scenario_deadlines,
)
from bench.scenarios import (
    gateways as scenario_gateways,
)
from bench.scenarios import (
    grouping as scenario_grouping,
)
from bench.scenarios.base import Scenario, Setup

__all__ = ["SCENARIOS", "Scenario", "Setup"]

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("flood", "a flood of long answers beside eight light tenants", 300.0, isolation.flood),
        Scenario("flood_prompts", "the same with long prompts", 300.0, isolation.flood_prompts),
        Scenario("flood_small", "engines of 8 slots: isolation against throughput", 600.0, isolation.flood_small),
        Scenario("unknown_size", "engines of 4 to 256 slots that nobody tells", 240.0, isolation.unknown_size),
        Scenario("returning_tenant", "a tenant comes back from idle", 381.0, shares.returning_tenant),
        Scenario("weights", "backlogged tenants with weights 1:2:4", 320.0, shares.weights),
        Scenario("users", "two users under one tenant", 140.0, shares.users),
        Scenario("mixed_sizes", "backlogged tenants of eightfold different sizes", 200.0, shares.mixed_sizes),
        Scenario("scarce_memory", "large requests and small ones, short of memory", 320.0, shares.scarce_memory),
        Scenario("priorities", "a few high ones among many low ones", 120.0, bands.priorities),
        Scenario("promised_share", "a share for batch work from the first minute on", 62.0, bands.promised_share),
        Scenario("batch_band", "batch work in the gaps", 120.0, bands.batch_band),
        Scenario("preemption", "people take the slots of batch work", 600.0, bands.preemption),
        Scenario("overload", "1.75 times capacity, with deadlines", 240.0, trouble.overload),
        Scenario("deadlines", "deadlines that can be kept, with jumps", 120.0, scenario_deadlines.deadlines),
        Scenario("shedding", "a flood of best-effort work, shed and not", 240.0, trouble.shedding),
        Scenario("stale_gauges", "gauges 5 s old against 50 ms", 300.0, isolation.stale_gauges),
        Scenario("engine_death", "an engine dies and comes back", 120.0, trouble.engine_death),
        Scenario("frozen_engine", "one of two engines stands still for 5 s", 120.0, trouble.frozen_engine),
        Scenario("cancel_storm", "half of the clients hang up", 120.0, trouble.cancel_storm),
        Scenario("autoscale", "how many engines, on loads that change", 1800.0, scenario_autoscale.autoscale),
        Scenario("grouping", "shared documents, with waits for them and without", 210.0, scenario_grouping.grouping),
        Scenario("estimates_wrong", "estimates wrong by 10x", 320.0, shares.estimates_wrong),
        Scenario("workers", "a flood at one process, and at four workers", 200.0, scenario_gateways.workers),
        Scenario("gateways", "one queue at several gateways, and each alone", 200.0, scenario_gateways.gateways),
        Scenario("decider_death", "the gateway that decides dies, again and again", 390.0, failover.decider_death),
        Scenario("partition", "gateways that can't reach each other, or the store", 120.0, failover.partition),
    )
}
