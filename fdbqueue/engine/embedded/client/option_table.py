"""The binding's options, by name and number. `options` implements them."""

from __future__ import annotations

from typing import Final

# The name of a dictionary is the type of its options' arguments.
FLAGS: Final = {
    "causal_write_risky": 10, "causal_read_risky": 20, "causal_read_disable": 21, "include_port_in_address": 23,
    "next_write_no_write_conflict_range": 30, "read_your_writes_disable": 51, "read_ahead_disable": 52,
    "durability_datacenter": 110, "durability_risky": 120, "durability_dev_null_is_web_scale": 130,
    "priority_system_immediate": 200, "priority_batch": 201, "initialize_new_database": 300,
    "access_system_keys": 301, "read_system_keys": 302, "raw_access": 303, "bypass_storage_quota": 304,
    "log_transaction": 404, "server_request_tracing": 406, "automatic_idempotency": 505,
    "read_server_side_cache_enable": 507, "read_server_side_cache_disable": 508, "read_priority_normal": 509,
    "read_priority_low": 510, "read_priority_high": 511, "snapshot_ryw_enable": 600, "snapshot_ryw_disable": 601,
    "lock_aware": 700, "used_during_commit_protection_disable": 701, "read_lock_aware": 702,
    "use_provisional_proxies": 711, "report_conflicting_keys": 712, "special_key_space_relaxed": 713,
    "special_key_space_enable_writes": 714, "expensive_clear_cost_estimation_enable": 1000,
    "bypass_unreadable": 1100, "use_grv_cache": 1101,
}  # fmt: skip
NUMBERS: Final = {
    "transaction_logging_max_field_length": 405, "timeout": 500, "retry_limit": 501, "max_retry_delay": 502,
    "size_limit": 503,
}  # fmt: skip
TEXTS: Final = {
    "debug_retry_logging": 401, "transaction_logging_enable": 402, "debug_transaction_identifier": 403, "tag": 800,
    "auto_throttle_tag": 801, "authorization_token": 2000,
}  # fmt: skip
BYTES: Final = {"span_parent": 900}

DATABASE_FLAGS: Final = {
    "snapshot_ryw_enable": 26, "snapshot_ryw_disable": 27, "transaction_causal_read_risky": 504,
    "transaction_include_port_in_address": 505, "transaction_automatic_idempotency": 506,
    "transaction_bypass_unreadable": 700, "transaction_used_during_commit_protection_disable": 701,
    "transaction_report_conflicting_keys": 702, "use_config_database": 800,
}  # fmt: skip
DATABASE_NUMBERS: Final = {
    "location_cache_size": 10, "max_watches": 20, "transaction_logging_max_field_length": 405,
    "transaction_timeout": 500, "transaction_retry_limit": 501, "transaction_max_retry_delay": 502,
    "transaction_size_limit": 503, "test_causal_read_risky": 900,
}  # fmt: skip
DATABASE_TEXTS: Final = {"machine_id": 21, "datacenter_id": 22}

DEFAULT_FOR: Final = {
    405: 405, 500: 500, 501: 501, 502: 502, 503: 503, 504: 20, 505: 23, 506: 505, 700: 1100, 701: 701, 702: 712,
}  # fmt: skip
"""Database options that set an option of each later transaction."""

READ_YOUR_WRITES_DISABLE: Final = 51
INITIALIZE_NEW_DATABASE: Final = 300
MAX_WATCHES: Final = 20
MOST: Final = {10: 2**31 - 1, MAX_WATCHES: 1_000_000, 900: 100}
"""The database's own numeric options, and the largest value of each. The smallest is 0."""
TIMEOUT: Final = 500
SNAPSHOT_RYW: Final = {26: 600, 27: 601}
"""Database options that count up and down, as the transaction's options do."""
USE_CONFIG_DATABASE: Final = 800

PERSISTENT: Final = frozenset({500, 501, 502, 2000})
"""Transaction options that outlive `on_error`; `reset` forgets them too."""
