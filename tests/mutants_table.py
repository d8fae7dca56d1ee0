"""Modules that guard against mistakes, and the fast tests that belong to each: the table of `make mutants`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """Files that are changed by small mistakes, and tests that must notice."""

    name: str
    files: tuple[str, ...]
    tests: tuple[str, ...]


def _group(name: str, files: str, tests: str) -> Group:
    return Group(name, tuple(files.split()), tuple(f"tests/{path}" for path in tests.split()))


GROUPS = [
    _group(
        "failure, policy",
        "launcher/attempt/cause.py launcher/attempt/failures.py launcher/attempt/stop_deadline.py "
        "launcher/attempt/suspend_clock.py",
        "launcher/attempt/test_failure.py launcher/attempt/test_failures.py launcher/attempt/test_stop_deadline.py "
        "launcher/attempt/test_suspend_clock.py",
    ),
    _group(
        "attempt",
        "launcher/attempt/state.py launcher/attempt/watch.py",
        "launcher/attempt/test_state.py launcher/attempt/test_hang.py launcher/attempt/test_stragglers.py",
    ),
    _group("plan", "launcher/plan/plan.py", "launcher/plan/test_values.py launcher/plan/test_plan.py"),
    _group(
        "pod",
        "launcher/pod/slices.py launcher/pod/ranges.py launcher/pod/pod.py launcher/pod/traits.py",
        "launcher/pod",
    ),
    _group(
        "protocol",
        "launcher/agent/base/protocol.py launcher/agent/base/schema.py launcher/agent/base/message.py",
        "launcher/agent/test_protocol.py",
    ),
    _group(
        "session",
        "launcher/remote/session.py launcher/remote/delivery.py launcher/remote/liveness.py",
        "launcher/remote/test_session.py launcher/remote/test_delivery.py launcher/remote/test_liveness.py",
    ),
    _group("heartbeat", "launcher/attempt/heartbeat.py", "launcher/attempt/test_heartbeat.py"),
    _group(
        "known hosts",
        "launcher/transport/ssh/known_hosts.py launcher/transport/ssh/host_key.py",
        "launcher/transport/test_known_hosts.py",
    ),
    _group("secrets", "launcher/pod/secret_values.py", "launcher/pod/test_secret_values.py"),
    _group(
        "config mistakes",
        "launcher/yamlfile/mistakes.py launcher/yamlfile/near.py launcher/yamlfile/schema_tree.py",
        "launcher/yamlfile/test_mistakes.py launcher/yamlfile/test_near.py",
    ),
    _group(
        "data",
        "runtime/data/pipeline.py runtime/data/check.py",
        "runtime/data/test_prefetcher.py runtime/data/test_check.py runtime/data/test_pipeline.py",
    ),
    _group("tokens", "runtime/data/tokens.py", "runtime/data/test_token_values.py runtime/data/test_tokens.py"),
    _group(
        "checkpoint",
        "runtime/checkpoint/store.py runtime/checkpoint/folder.py runtime/checkpoint/save.py runtime/checkpoint/restore.py "
        "runtime/checkpoint/damage.py runtime/checkpoint/same_job.py",
        "runtime/checkpoint/test_same_job.py runtime/checkpoint/test_damage.py "
        "runtime/checkpoint/test_errors_while_saving.py runtime/checkpoint/test_host_faults.py "
        "runtime/checkpoint/test_restore.py runtime/checkpoint/test_checkpoint.py runtime/checkpoint/test_process_zero.py "
        "runtime/checkpoint/test_frozen.py",
    ),
    _group(
        "metrics",
        "runtime/measure/writers.py runtime/measure/epochs.py",
        "runtime/measure/test_saved_means.py runtime/measure/test_writers.py runtime/measure/test_metrics.py "
        "runtime/measure/test_epochs.py",
    ),
    _group("distributed", "runtime/distributed.py", "runtime/test_distributed.py runtime/test_agreement.py"),
]
