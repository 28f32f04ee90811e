"""Every setting has a test that fails when it does nothing: here is which. On the wire, where no note says otherwise."""

# ruff: noqa: E501  (tests have long names)

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from penstock.config.explain import nested, sections

TESTS = Path(__file__).parents[1]
HERE = "settings::"
SHARED = "group::"
DNS = "discovery_dns::test_every_address_of_a_name_is_an_endpoint"  # over DNS
KUBERNETES = "discovery_kubernetes::test_slices_tell_what_is_ready_behind_a_service"  # over its API
LIMITS = HERE + "test_the_queue_of_a_tenant_is_bounded_in_every_measure"
PRICES = HERE + "test_prices_decide_the_share_of_service"
WAITING = HERE + "test_the_queue_is_bounded"
IN_A_BAND = HERE + "test_how_long_it_helps_to_wait_in_a_band"
OUT = HERE + "test_after_so_many_failures_an_endpoint_is_out_for_so_long"
OF_BATCHES = "batch::test_limits_of_a_tenant"

HELD_BY: dict[str, str] = {
    "listen": "admin::test_a_gateway_that_listens_everywhere_without_tokens_answers_403",
    "default_band": HERE + "test_the_default_band_and_a_custom_band_header",
    "ordering": HERE + "test_the_shortest_of_a_flow_goes_first",
    "state_dir": HERE + "test_a_gateway_keeps_its_state_in_its_folder",
    "root_path": "production_stack::test_paths_are_served_with_and_without_their_prefix",
    "workers": "processes::test_a_worker_that_is_killed_takes_its_own_connections_only",
    "epp.listen": "envoy::test_the_openai_client_gets_whole_answers_and_streams",
    "share.listen": SHARED + "test_slots_and_queue_are_those_of_one_gateway_and_one_that_ends_serves_what_it_has",
    "share.advertise": SHARED + "test_an_address_that_nobody_reaches_is_told_and_the_gateway_serves_alone",
    "share.secret": SHARED + "test_another_secret_and_other_settings_are_told_at_both_ends_and_each_serves_alone",
    "share.tls.cert": SHARED + "test_certificates_of_one_authority_are_enough",
    "share.tls.key": SHARED + "test_certificates_of_one_authority_are_enough",
    "share.tls.ca": SHARED + "test_certificates_of_one_authority_are_enough",
    "share.elect.static": SHARED + "test_slots_and_queue_are_those_of_one_gateway_and_one_that_ends_serves_what_it_has",
    "share.elect.kubernetes.*": "stores::test_one_is_elected_gives_it_back_and_the_next_takes_it",
    "share.elect.valkey.*": "elected::test_another_gateway_decides_within_seconds_and_no_stream_of_others_breaks",
    "share.elect.postgres.*": "stores::test_groups_of_gateways_in_one_database",
    "share.budgets.valkey.*": "budgets::test_what_is_used_at_one_is_used_at_the_other",
    "share.alone_after": SHARED + "test_a_decider_that_is_killed_breaks_no_stream_of_others_and_loses_no_request",
    "share.name": "strangers::test_an_edge_that_does_not_fit_is_told_why",
    "tls.cert": "reload::test_a_renewed_certificate_is_used_for_new_connections",
    "tls.key": "reload::test_a_renewed_certificate_is_used_for_new_connections",
    "endpoints[].url": "gateway::test_each_path_is_served_as_the_engine_serves_it",
    "endpoints[].name": "gateway::test_a_pinned_request_goes_to_its_endpoint_or_is_refused_at_once",
    "endpoints[].engine": "identify::test_what_is_set_is_neither_guessed_nor_overruled",
    "endpoints[].models": "identify::test_what_is_set_is_neither_guessed_nor_overruled",
    "endpoints[].slots": "limits::test_two_run_four_wait_and_four_are_refused_at_once",
    "endpoints[].weight": "endpoint_limits::test_three_of_four_go_where_the_weight_is_three_beside_one",
    "endpoints[].price": "endpoint_limits::test_the_cheaper_endpoint_is_filled_first_and_the_dearer_gets_the_rest",
    "endpoints[].max_kv_usage": "endpoint_limits::test_its_own_limit_on_kv_memory",
    "endpoints[].max_prefill_tokens": "endpoint_limits::test_its_own_limit_on_prompts_under_way",
    "endpoints[].max_time_per_output_token": "endpoint_limits::test_its_own_limit_on_the_time_per_output_token",
    "endpoints[].max_engine_waiting": "endpoint_limits::test_its_own_limit_on_what_waits_in_its_engine",
    "endpoints[].tls.ca": "endpoint_tls::test_an_engine_of_an_own_authority_is_trusted_by_all_that_asks_it",
    "endpoints[].tls.server_name": "endpoint_tls::test_a_certificate_that_does_not_fit_is_not_trusted",
    "endpoints[].tls.cert": "endpoint_tls::test_an_engine_that_wants_a_certificate_is_shown_one",
    "endpoints[].tls.key": "endpoint_tls::test_an_engine_that_wants_a_certificate_is_shown_one",
    "endpoints[].tls.verify": "endpoint_tls::test_a_certificate_that_is_not_checked_is_said_in_the_log",
    "discovery[].dns.tls.*": "endpoint_tls::test_what_discovery_finds_is_trusted_alike",
    "discovery[].kubernetes.tls.*": "endpoint_tls::test_what_discovery_finds_is_trusted_alike",
    "endpoints[].api_key": "gateway::test_an_engine_gets_its_own_key_and_never_the_callers",
    "endpoints[].labels": "disaggregation::test_a_prompt_is_computed_at_one_engine_and_answered_by_another",
    "endpoints[].kv_events": "locality::test_a_request_goes_to_the_engine_that_reports_its_prompt",
    "endpoints[].lmcache_instance": "locality::test_the_controllers_word_is_followed",
    "discovery[].dns.*": DNS,
    "discovery[].dns.type": "discovery_dns::test_srv_records_bring_their_own_hosts_and_ports",
    "discovery[].dns.refresh": "discovery_dns::test_an_answer_is_kept_as_long_as_it_says",
    "discovery[].file.*": "reload::test_a_reload_starts_and_stops_watching_a_file_of_endpoints",
    "discovery[].file.env": "discovery_dns::test_a_file_may_come_late_and_change",
    "discovery[].kubernetes.*": KUBERNETES,
    "discovery[].kubernetes.server": "discovery_kubernetes::test_a_gateway_serves_the_pods_it_finds_and_forgets_those_that_go",
    "discovery[].kubernetes.token": "discovery_kubernetes::test_a_gateway_serves_the_pods_it_finds_and_forgets_those_that_go",
    "discovery[].kubernetes.token_file": "discovery_kubernetes::test_a_renewed_token_is_used_from_the_next_request_on",
    "discovery[].kubernetes.ca_file": "discovery_kubernetes::test_inside_a_cluster_the_pods_own_account_is_used",
    "discovery[].kubernetes.pool": "discovery_pool::test_each_target_port_of_each_ready_pod_is_an_endpoint",
    "models.<name>.split": "models::test_a_split_gives_each_model_its_share_and_a_session_one_model_and_follows_a_reload",
    "models.<name>.to": "gateway::test_an_alias_is_replaced_and_nothing_else",
    "models.<name>.band": "models::test_a_models_requests_have_its_band_without_asking_and_an_alias_may_have_another",
    "models.<name>.fallback": "fallback::test_a_model_without_endpoints_is_served_by_its_fallback_with_a_header",
    "models.<name>.weight": "models::test_models_share_by_weight_and_follow_a_reload",
    "models.<name>.prices.prompt": PRICES,
    "models.<name>.prices.cached_prompt": HERE + "test_cached_prompt_tokens_have_their_own_price",
    "models.<name>.prices.completion": PRICES,
    "usage.keep": "ledger::test_rows_are_kept_as_long_as_the_settings_say",
    "usage.prices.<name>.*": "usage::test_costs_are_the_operators_own_and_follow_a_reload",
    "queue.enabled": "gateway::test_with_queueing_off_nothing_waits_and_slots_do_not_limit",
    "queue.max_requests": WAITING,
    "queue.max_bytes": WAITING,
    "queue.max_tokens": WAITING,
    "queue.max_wait": "failures::test_a_wait_that_is_too_long_is_a_429",
    "queue.empty_pool_wait": "failures::test_a_request_for_an_empty_pool_has_a_wait_of_its_own",
    "queue.heartbeat_after": "heartbeat::test_a_waiting_stream_is_told_its_place_and_then_gets_the_engines_bytes",
    "queue.drain_timeout": "shutdown::test_requests_queued_at_the_timeout_get_a_503",
    "queue.stop_timeout": "shutdown::test_requests_running_at_the_timeout_are_aborted",
    "bands[].name": "tenancy::test_anyone_may_lower_its_band_and_only_a_key_lets_it_rise",
    "bands[].max_engine_waiting": "limits::test_a_band_with_no_patience_for_the_engines_queue_waits_for_it_to_be_empty",
    "bands[].priority": "callers::test_an_objective_belongs_to_the_highest_band_whose_number_is_not_above_its_priority",
    "bands[].best_effort": IN_A_BAND,
    "bands[].shed_target": IN_A_BAND,
    "bands[].shed_interval": IN_A_BAND,
    "bands[].preemptible": "preemption::test_bands_can_be_told_not_to_be_preemptible",
    "bands[].ceiling": HERE + "test_a_band_fills_endpoints_up_to_its_ceiling",
    "bands[].min_share": HERE + "test_a_band_gets_its_promised_share_whatever_waits_above_it",
    "bands[].deadline": IN_A_BAND,
    "bands[].max_time_per_output_token": "tpot::test_a_slow_engine_gets_nothing_more_even_where_all_it_runs_is_of_others",
    "bands[].max_wait": IN_A_BAND,
    "bands[].ordering": HERE + "test_the_shortest_of_a_flow_goes_first",
    "bands[].max_requests": WAITING,
    "bands[].max_bytes": WAITING,
    "bands[].max_tokens": WAITING,
    "bands[].fairness.policy": HERE + "test_requests_are_served_in_order_of_arrival",
    "fairness.policy": HERE + "test_requests_are_served_in_order_of_arrival",
    "fairness.levels": "fairness::test_weights_divide_between_tenants_and_users_share_their_tenants_part",
    "fairness.prices.prompt": PRICES,
    "fairness.prices.cached_prompt": HERE + "test_cached_prompt_tokens_have_their_own_price",
    "fairness.prices.completion": PRICES,
    "admission.slots_initial": HERE + "test_an_engine_of_unknown_size_begins_with_slots_initial",
    "admission.max_kv_usage": HERE + "test_an_endpoint_takes_no_more_than_its_memory_and_its_prompts_allow",
    "admission.max_prefill_tokens": HERE + "test_an_endpoint_takes_no_more_than_its_memory_and_its_prompts_allow",
    "admission.max_time_per_output_token": "tpot::test_a_slow_engine_gets_nothing_more_even_where_all_it_runs_is_of_others",
    "admission.reserved_slots": HERE + "test_the_last_slots_are_reserved_for_tenants_under_their_share",
    "admission.max_preemptions": "preempting::test_preemption_can_be_switched_off",
    "admission.max_preempted_share": "preempting::test_no_more_slot_time_is_lost_than_the_stated_share",
    "admission.engine_priority": "engine_priority::test_a_higher_band_has_a_lower_number_whatever_the_client_says",
    "routing.policy": "routing::test_with_the_default_threshold_the_longest_cached_prefix_wins_however_busy_its_engine_is",
    "routing.affinity_escape": HERE + "test_a_prefix_is_worth_so_much_of_a_wait",
    "routing.affinity_wait": "routing::test_a_session_waits_for_its_engine_and_then_moves",
    "routing.prefix_chunk": "routing::test_a_shorter_beginning_is_found_again_where_the_settings_say_so",
    "routing.price_weight": "endpoint_limits::test_a_finite_weight_is_seconds_of_a_later_first_token",
    "routing.imbalance_threshold": "routing::test_from_the_threshold_on_the_least_loaded_one_gets_it",
    "routing.locality": "locality::test_a_request_goes_to_the_engine_that_reports_its_prompt",
    "routing.divide_from": "disaggregation::test_short_prompts_may_stay_whole",
    "routing.session.header": "routing::test_the_requests_of_a_session_go_to_one_engine",
    "routing.session.cookie": "routing::test_the_requests_of_a_session_go_to_one_engine",
    "routing.session.body": "routing::test_the_requests_of_a_session_go_to_one_engine",
    "routing.session.strict": "routing::test_a_session_waits_for_its_engine_and_then_moves",
    "routing.lmcache.coordinator": "locality::test_the_coordinators_longest_match_is_followed",
    "routing.lmcache.controller": "locality::test_the_controllers_word_is_followed",
    "retry.max_attempts": "failures::test_resets_everywhere_are_a_502_after_all_attempts",
    "retry.budget": "failures::test_retries_are_the_share_of_requests_that_the_budget_says_and_ten_at_least",
    "health.probe_interval": "failures::test_an_engine_that_is_gone_is_found_dead_by_the_first_request_and_found_again",
    "health.eject_after": OUT,
    "health.eject_for": OUT,
    "health.eject_for_max": OUT,
    "health.panic_threshold": HERE + "test_where_too_few_are_well_all_are_used",
    "timeouts.connect": HERE + "test_an_engine_that_takes_no_connection_is_given_up_in_the_time_that_is_set",
    "timeouts.first_byte": "failures::test_an_engine_that_never_answers_is_given_up_and_another_one_asked",
    "timeouts.between_bytes": "failures::test_an_engine_that_falls_silent_in_mid_answer_is_given_up",
    "timeouts.client_header": "behaviour::test_a_slow_head_is_a_408",
    "timeouts.client_body": "bad_input::test_a_length_that_is_too_long_or_a_chunked_body_that_stops_is_a_408",
    "timeouts.client_write": "failures::test_a_client_that_stops_reading_stops_the_engines_stream_and_then_loses_its_connection",
    "timeouts.client_idle": "behaviour::test_an_idle_client_connection_is_kept_and_announced_for_the_configured_time",
    "limits.max_body": "bad_input::test_a_chunked_body_is_refused_at_the_byte_that_is_too_many",
    "limits.max_header": HERE + "test_heads_and_connections_are_bounded",
    "limits.max_connections": HERE + "test_heads_and_connections_are_bounded",
    "limits.max_connections_per_address": "connections::test_connections_of_one_address_have_a_limit_if_set",
    "accounting.usage": "gateway::test_with_accounting_off_a_streamed_body_is_not_touched_either",
    "tenants[].name": "tenancy::test_a_caller_without_a_key_is_whom_its_headers_name",
    "tenants[].weight": "fairness::test_weights_divide_between_tenants_and_users_share_their_tenants_part",
    "tenants[].max_band": HERE + "test_how_high_a_caller_may_ask",
    "tenants[].keys[].hash": "tenancy::test_a_key_of_ours_never_reaches_the_engine",
    "tenants[].keys[].name": "rights::test_a_key_is_a_user_by_its_name",
    "tenants[].keys[].models": "rights::test_a_key_uses_the_models_that_it_names_and_sees_no_others",
    "tenants[].keys[].max_prompt_tokens": "rights::test_a_prompt_that_is_longer_than_its_key_may_send_is_refused",
    "tenants[].keys[].max_output_tokens": "rights::test_a_request_without_a_limit_is_sent_with_that_of_its_key",
    "tenants[].keys[].expires": "rights::test_an_expired_key_gets_an_error_that_names_the_date",
    "tenants[].keys[].limits.*": "own_limits::test_every_limit_of_a_key_and_of_a_model_is_held",
    "tenants[].limits.models.<name>.*": "own_limits::test_every_limit_of_a_key_and_of_a_model_is_held",
    "identity.anonymous.limits.models.<name>.*": "own_limits::test_all_without_a_key_together_have_limits_per_model",
    "tenants[].limits.running": "tenancy::test_a_tenant_runs_as_many_as_it_may_and_its_others_wait_without_standing_in_the_way",
    "tenants[].limits.queued": LIMITS,
    "tenants[].limits.queued_bytes": LIMITS,
    "tenants[].limits.queued_tokens": LIMITS,
    "tenants[].limits.requests_per_minute": "tenancy::test_requests_per_minute_are_counted_and_refusals_are_not",
    "tenants[].limits.tokens_per_minute": "tenancy::test_tokens_per_minute_are_reserved_and_settled_by_what_was_used",
    "tenants[].limits.tokens_per_day": "rights::test_tokens_of_a_day_are_reserved_settled_and_reported",
    "identity.made_keys": "made_keys::test_without_issued_keys_those_of_the_settings_are_listed",
    "identity.require_key": "tenancy::test_without_a_known_key_nothing_is_served_where_one_is_required",
    "identity.tenant_header": HERE + "test_headers_that_name_callers_have_the_names_that_are_set",
    "identity.user_header": HERE + "test_headers_that_name_callers_have_the_names_that_are_set",
    "identity.band_header": HERE + "test_the_default_band_and_a_custom_band_header",
    "identity.max_band": HERE + "test_how_high_a_caller_may_ask",
    "identity.max_dynamic": "tenancy::test_strange_names_become_short_ones_and_too_many_share_one_flow",
    "identity.trusted_proxies": "tenancy::test_a_trusted_proxy_may_name_a_tenant_that_has_keys",
    "identity.allowed_hosts": HERE + "test_names_and_pages_that_may_use_it",
    "identity.allowed_origins": HERE + "test_names_and_pages_that_may_use_it",
    "client_address.proxy_protocol": "client_address::test_a_balancer_names_the_client_of_a_connection",
    "client_address.proxies": "client_address::test_a_proxy_names_the_client_of_a_request",
    "client_address.header": "client_address::test_a_proxy_names_the_client_of_a_request",
    "cors.origins": "cors::test_a_page_that_is_listed_may_ask_and_read",
    "identity.jwt.issuer": "tokens::test_bad_tokens_are_refused_with_the_reason",
    "identity.jwt.audience": "tokens::test_bad_tokens_are_refused_with_the_reason",
    "identity.jwt.jwks_url": "tokens::test_keys_may_be_elsewhere_and_only_configured_algorithms_count",
    "identity.jwt.algorithms": "tokens::test_keys_may_be_elsewhere_and_only_configured_algorithms_count",
    "identity.jwt.tenant_claim": "tokens::test_claims_name_the_tenant_and_the_user",
    "identity.jwt.user_claim": "tokens::test_claims_name_the_tenant_and_the_user",
    "identity.jwt.band_claim": "tokens::test_a_band_is_given_up_to_the_tenants_highest_and_what_was_lowered_is_told",
    "identity.jwt.leeway": "tokens::test_clocks_may_be_apart_by_the_leeway",
    "identity.jwt.max_stale": "tokens::test_keys_that_grew_too_old_count_no_more",
    "identity.distinguish": "unnamed::test_each_distinction_can_be_switched_off",
    "identity.anonymous.weight": "shares::test_a_flood_without_a_key_gets_one_part_however_many_names_it_has",
    "identity.anonymous.limits.running": HERE + "test_callers_without_a_key_run_so_many_together",
    "identity.anonymous.limits.queued": LIMITS,
    "identity.anonymous.limits.queued_bytes": LIMITS,
    "identity.anonymous.limits.queued_tokens": LIMITS,
    "identity.anonymous.limits.requests_per_minute": HERE + "test_callers_without_a_key_have_rates_together",
    "identity.anonymous.limits.tokens_per_minute": HERE + "test_callers_without_a_key_have_rates_together",
    "identity.anonymous.limits.tokens_per_day": "rights::test_tokens_of_a_day_are_reserved_settled_and_reported",
    "autoscale.*": "autoscale::test_every_target_of_the_rule_is_a_setting",
    "observe.interval": HERE + "test_gauges_are_read_as_often_as_is_set_and_faster_while_somebody_waits",
    "observe.fast_interval": HERE + "test_gauges_are_read_as_often_as_is_set_and_faster_while_somebody_waits",
    "metrics.aliases": "metrics::test_the_routers_names_are_there_for_who_asks",
    "admin.listen": "operators_address::test_operators_paths_are_served_there_only",
    "admin.token": "admin::test_the_gateway_asks_for_the_token_before_it_reads_a_body",
    "admin.read_token": "admin::test_no_answer_of_admin_can_be_taken_for_a_page",
    "admin.operators[].name": "operators::test_events_the_log_and_the_sentence_name_the_operator",
    "admin.operators[].token": "operators::test_names_and_tokens_belong_to_one_operator_each",
    "batch.data": "batch::test_the_openai_client_runs_a_batch",
    "batch.serve": "made_keys::test_a_restart_keeps_issued_keys_and_no_revoked_ones",
    "batch.store": "kill::test_two_gateways_share_a_batch_on_postgres_and_one_is_killed",
    "batch.url": "kill::test_two_gateways_share_a_batch_on_postgres_and_one_is_killed",
    "batch.keep": HERE + "test_files_are_kept_so_long_and_have_so_many_lines",
    "batch.claim_timeout": "kill::test_two_gateways_share_a_batch_on_postgres_and_one_is_killed",
    "batch.limits.files": OF_BATCHES,
    "batch.limits.bytes": OF_BATCHES,
    "batch.limits.batches": OF_BATCHES,
    "batch.limits.items": OF_BATCHES,
    "batch.limits.max_file": OF_BATCHES,
    "batch.limits.max_lines": HERE + "test_files_are_kept_so_long_and_have_so_many_lines",
    "batch.limits.max_line": OF_BATCHES,
    "log.format": "logs::test_without_access_lines_there_are_none_and_a_reload_brings_them",
    "log.routing": "production_stack::test_without_the_setting_there_are_no_lines",
    "log.access": "logs::test_without_access_lines_there_are_none_and_a_reload_brings_them",
    "tracing.endpoint": "tracing::test_spans_reach_a_collector_by_otlp_until_a_reload_ends_it",
    "tracing.sample": "tracing::test_who_is_not_sampled_is_not_sent_but_the_engine_hears_so",
}


def all_settings() -> list[str]:
    return [
        prefix + key
        for prefix, section in sections()
        for key, field in section.model_fields.items()
        if nested(field.annotation) is None
    ]


def holder(setting: str) -> str | None:
    """Its test; of what finds endpoints one test stands for what is told of them."""
    return HELD_BY.get(setting) or HELD_BY.get(setting.rpartition(".")[0] + ".*")


@cache
def names_in(module: str) -> set[str]:
    found = [path for path in TESTS.rglob(f"test_{module}.py") if path.parent.name != "conformance"]
    trees = [ast.parse(path.read_text()) for path in found]
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, functions)}


def test_every_setting_is_held_by_a_test() -> None:
    assert [setting for setting in all_settings() if holder(setting) is None] == []


def test_every_setting_is_held_by_an_existing_test() -> None:
    for setting, test in HELD_BY.items():
        module, name = test.split("::")
        assert name in names_in(module), f"{test}, which is to hold {setting}, is not there"
    known = {*all_settings(), *(setting.rpartition(".")[0] + ".*" for setting in all_settings())}
    assert sorted(HELD_BY.keys() - known) == []
