"""Who writes another program's word for a setting is told ours."""

from __future__ import annotations

import pytest

from penstock.config.explain import sections
from penstock.config.load import ConfigError, from_mapping
from penstock.config.other_words import WORDS, ours_for

OURS = {f"{prefix}{key}" for prefix, section in sections() for key in section.model_fields}
ALL = [(whose, word) for whose, words in WORDS.items() for word in words]


def lines(document: dict[str, object]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        from_mapping(document)
    return [problem.line() for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("document", "line"),
    [
        ({"model_list": []}, "model_list: unknown setting (LiteLLM's name, it seems: here it is `endpoints`)"),
        ({"endpoints": [{"url": "http://a", "litellm_params": {}}]}, "`endpoints[].url` or `endpoints[].api_key`"),
        ({"tenants": [{"name": "a", "rpm": 3}]}, "here it is `tenants[].limits.requests_per_minute`"),
        ({"tenants": [{"name": "a", "limits": {"tpm": 3}}]}, "here it is `tenants[].limits.tokens_per_minute`"),
        ({"max_parallel_requests": 1}, "here it is `tenants[].limits.running`"),
        ({"general_settings": {}}, "here it is `identity`, `admin` or `limits`"),
        ({"router_settings": {}}, "here it is `routing`, `retry` or `health`"),
        ({"upstream": "x"}, "nginx's name, it seems: here it is `endpoints`"),
        ({"proxy_pass": "x"}, "here it is `endpoints[].url`"),
        (
            {"endpoints": [{"url": "http://a", "maxconn": 4}]},
            "HAProxy's name, it seems: here it is `endpoints[].slots`",
        ),
        ({"backend": "x"}, "here it is `endpoints`"),
        ({"static_backends": "x"}, "production-stack's name, it seems: here it is `endpoints[].url`"),
        ({"static-backends": "x"}, "production-stack's name, it seems: here it is `endpoints[].url`"),
        ({"routing_logic": "x"}, "here it is `routing.policy`"),
        ({"worker_urls": "x"}, "SGLang's name, it seems: here it is `endpoints[].url`"),
        ({"policy": "x"}, "did you mean `bands[].fairness.policy`, `fairness.policy` or `routing.policy`?"),
        ({"saturationDetector": {}}, "llm-d's name, it seems: here it is `admission`"),
    ],
)
def test_another_programs_name_is_answered_with_ours(document: dict[str, object], line: str) -> None:
    (told,) = lines(document)
    assert ": unknown setting (" in told
    assert line in told


@pytest.mark.parametrize(
    "removed",
    [
        (
            {"routing": {"prefix_group_tokens": 4}},
            (
                "routing.prefix_group_tokens: was removed (delete it: a prompt is cached if most of what it does not"
                " share with others is)"
            ),
        ),
        (
            {"bands": [{"name": "standard", "shed_interval": "9s"}]},
            "bands[0].shed_interval: was removed (delete it: it is 5 s, longer than most answers take)",
        ),
        (
            {"admission": {"max_preemptions": 1}},
            "admission.max_preemptions: was removed (delete it: a request is preempted three times at most)",
        ),
        (
            {"identity": {"anonymous": {"limits": {"models": {"m": {"running": 1}}}}}},
            (
                "identity.anonymous.limits.models: was removed (a tenant named `anonymous` has such limits: `tenants:"
                " [{name: anonymous, limits: {models: …}}]`)"
            ),
        ),
        (
            {"identity": {"jwt": {"issuer": "https://i", "audience": "a", "leeway": "1m", "max_stale": "1h"}}},
            "identity.jwt.leeway: was removed (delete it: clocks may be 30 s apart)",
            (
                "identity.jwt.max_stale: was removed (delete it: fetched keys are valid for a day while the issuer is"
                " unreachable)"
            ),
        ),
        (
            {"discovery": [{"kubernetes": {"service": "a", "server": "https://k", "token": "t"}}]},
            "discovery[0].kubernetes.token: was removed (write it to a file and name that, `token_file: PATH`)",
        ),
        (
            {"share": {"listen": ":1", "secret": "a-secret-of-16-or-more", "elect": {"kubernetes": {"token": "t"}}}},
            "share.elect.kubernetes.token: was removed (write it to a file and name that, `token_file: PATH`)",
        ),
        (
            {"discovery": [{"file": {"path": "a", "refresh": "1s"}}]},
            "discovery[0].file.refresh: was removed (delete it: the file is checked every second)",
        ),
    ],
)
def test_a_removed_setting_is_refused_with_its_replacement(removed: tuple[dict[str, object], *tuple[str, ...]]) -> None:
    document, *told = removed
    assert lines(document) == told


@pytest.mark.parametrize(("whose", "word"), ALL, ids=[word for _, word in ALL])
def test_what_is_told_is_there_and_the_word_is_none_of_ours(whose: str, word: str) -> None:
    assert set(WORDS[whose][word]) <= OURS
    assert not any(path.rpartition(".")[2] == word for path in OURS)
    assert word not in {key for other, key in ALL if other != whose}, "one program's, or nobody knows whose"
    assert ours_for(word) is not None
    assert ours_for(word.replace("_", "-")) == ours_for(word)


def test_a_misspelled_setting_is_still_reported_as_one() -> None:
    assert lines({"endpoint": []}) == ["endpoint: unknown setting (did you mean `endpoints`?)"]
