"""How other projects' gateways would send the same requests: on arrival, with no queue of their own; engines queue.

Each is modelled on what its project documents or was seen to do (see docs/simulate.md), and given the best it could
have: loads are exact and never stale, predictions of caches are exact where the original follows KV events. They exist
for comparison only and are no policies of Penstock.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence

from penstock.sim.engine.profiles import EngineConfig
from penstock.sim.world import passthrough
from penstock.sim.world.passthrough import MakeRival, Rival
from penstock.sim.world.workload import Job
from penstock.sim.world.world_values import EngineNode

CHARACTERS_PER_TOKEN = 4


class ApproximateTree:
    """Which engine was sent which prefix: one bounded LRU of blocks per engine, ends of prompts forgotten first."""

    def __init__(self, engines: int, blocks_max: int) -> None:
        self._blocks_max = blocks_max
        self._held: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(engines)]

    def match(self, job: Job, number: int) -> int:
        """Returns how many leading blocks of the prompt were sent to an engine."""
        held, depth = self._held[number], 0
        for block in job.blocks:
            if block not in held:
                break
            depth += 1
        return depth

    def size(self, number: int) -> int:
        return len(self._held[number])

    def insert(self, job: Job, number: int) -> None:
        held = self._held[number]
        for block in reversed(job.blocks):
            held[block] = None
            held.move_to_end(block)
        while len(held) > self._blocks_max:
            held.popitem(last=False)


class SglangCacheAware(Rival):
    """SGLang's `cache_aware`: by load when that is out of balance, else by match, else where there is most room.

    The match is of an approximate tree over characters of what was sent, bounded per engine, that the engines' own
    evictions never reach. Two sets of thresholds are in use: those of the library, and those of the router's flags.
    """

    ABSOLUTE, RELATIVE, MATCH = 32, 1.1, 0.5
    SMALLEST_TREE = False  # if nothing matches: True takes the engine with the smallest tree, False the least loaded
    TREE_CHARACTERS = 67_108_864

    def __init__(self, nodes: Sequence[EngineNode]) -> None:
        super().__init__(nodes)
        self._tree: ApproximateTree | None = None

    def choose(self, job: Job) -> int:
        tree = self._tree_for(job)
        chosen = self._chosen(job, tree)
        tree.insert(job, chosen)
        return chosen

    def _chosen(self, job: Job, tree: ApproximateTree) -> int:
        most, fewest = max(self.requests), min(self.requests)
        if most - fewest > self.ABSOLUTE and most > self.RELATIVE * fewest:
            return self.fewest_requests(self.all)
        depths = [tree.match(job, number) for number in self.all]
        deepest = max(depths)
        if deepest * job.block_tokens > self.MATCH * job.prompt_tokens:
            return self.fewest_requests([number for number in self.all if depths[number] == deepest])
        return self.least(self.all, tree.size) if self.SMALLEST_TREE else self.fewest_requests(self.all)

    def _tree_for(self, job: Job) -> ApproximateTree:
        if self._tree is None:
            blocks_max = self.TREE_CHARACTERS // (CHARACTERS_PER_TOKEN * job.block_tokens)
            self._tree = ApproximateTree(len(self.nodes), blocks_max)
        return self._tree


class SglangRouterFlags(SglangCacheAware):
    """The same with what sglang-router 0.3 sets by its flags' defaults."""

    ABSOLUTE, RELATIVE, MATCH = 64, 1.5, 0.3
    SMALLEST_TREE = True


class PredictsPrefill(Rival):
    """Tracks the uncached prompt tokens at each engine, as predicted, until their first tokens."""

    def __init__(self, nodes: Sequence[EngineNode]) -> None:
        super().__init__(nodes)
        self.prefill_tokens = [0] * len(nodes)
        self._uncached: dict[str, int] = {}

    def cached_tokens(self, job: Job, number: int) -> int:
        """Returns the tokens of a prompt that an engine should have cached."""
        raise NotImplementedError

    def sent(self, job: Job, number: int) -> None:
        self._uncached[job.id] = uncached = max(1, job.prompt_tokens - self.cached_tokens(job, number))
        self.prefill_tokens[number] += uncached
        super().sent(job, number)

    def first_token(self, job: Job) -> None:
        self.prefill_tokens[self._at[job.id]] -= self._uncached.pop(job.id, 0)

    def ended(self, job: Job, now: float) -> None:
        self.first_token(job)
        super().ended(job, now)


class LlmdAffinity(PredictsPrefill):
    """llm-d's prefix-cache-affinity filter: sticky where 80 % match, unless that costs 18 s more to the first token."""

    MATCH = 0.8
    PENALTY_S = 18.0

    def __init__(self, nodes: Sequence[EngineNode]) -> None:
        super().__init__(nodes)
        config = nodes[0].spec.config
        self._tokens_per_s = _peak_prefill(config)
        self._index = ApproximateTree(len(nodes), config.kv_blocks)

    def choose(self, job: Job) -> int:
        sticky = [n for n in self.all if self.cached_tokens(job, n) >= self.MATCH * job.prompt_tokens]
        others = [n for n in self.all if n not in sticky]
        among: Sequence[int] = self.all
        if sticky and (not others or self._ttft_s(sticky) - self._ttft_s(others) <= self.PENALTY_S):
            among = sticky
        return self.least(among, self.prefill_tokens.__getitem__)

    def sent(self, job: Job, number: int) -> None:
        super().sent(job, number)
        self._index.insert(job, number)

    def cached_tokens(self, job: Job, number: int) -> int:
        return self._index.match(job, number) * job.block_tokens

    def _ttft_s(self, numbers: Sequence[int]) -> float:
        return min(self.prefill_tokens[number] for number in numbers) / self._tokens_per_s


class DynamoCost(PredictsPrefill):
    """Dynamo's KV router: prefill blocks to compute plus blocks held by what is under way, the least sum.

    Overlap is what the engine really holds, as its KV events would say. Scales and weights are its defaults.
    """

    def __init__(self, nodes: Sequence[EngineNode]) -> None:
        super().__init__(nodes)
        self._blocks: list[Counter[int]] = [Counter() for _ in nodes]  # held by what is under way
        self._own: list[float] = [0.0] * len(nodes)  # blocks of prompts without hashes

    def choose(self, job: Job) -> int:
        return self.least(self.all, lambda number: self._cost(job, number))

    def _cost(self, job: Job, number: int) -> float:
        blocks = job.prompt_tokens / job.block_tokens
        overlap = self.cached_tokens(job, number) / job.block_tokens
        prefill = max(0.0, self.prefill_tokens[number] / job.block_tokens + blocks - overlap)
        held = self._blocks[number]
        new = blocks - sum(1 for block in job.blocks if block in held)
        return prefill + len(held) + self._own[number] + new

    def cached_tokens(self, job: Job, number: int) -> int:
        return self.nodes[number].engine.pool.match(job.blocks, len(job.blocks)) * job.block_tokens

    def sent(self, job: Job, number: int) -> None:
        super().sent(job, number)
        self._blocks[number].update(job.blocks)
        self._own[number] += _tail(job)

    def ended(self, job: Job, now: float) -> None:
        number = self._at[job.id]
        held = self._blocks[number]
        for block in job.blocks:
            held[block] -= 1
            if not held[block]:
                del held[block]
        self._own[number] -= _tail(job)
        super().ended(job, now)


def _tail(job: Job) -> float:
    """Returns how many blocks of a prompt have no hash."""
    return job.prompt_tokens / job.block_tokens - len(job.blocks)


def _peak_prefill(config: EngineConfig) -> float:
    """Returns the tokens per second of one full step, which is how llm-d says to calibrate it."""
    tokens = config.max_num_batched_tokens
    return tokens / (config.step_s or config.step_base_s + config.prefill_s_per_token * tokens)


RIVALS: dict[str, MakeRival] = {
    **passthrough.RIVALS,
    "sglang_cache_aware": SglangCacheAware,
    "sglang_router_flags": SglangRouterFlags,
    "llmd_affinity": LlmdAffinity,
    "dynamo_cost": DynamoCost,
}
