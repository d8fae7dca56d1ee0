"""Check on every host that a run can store its results in a bucket: `podrun check --workdir gs://...`."""

from __future__ import annotations

from pathlib import Path

from podrun.runtime import contract
from podrun.runtime.storage import bucket_check, bucket_client, bucket_digest, bucket_errors, bucket_library

from ..agent.base.from_agent import Bucket
from ..agent.base.to_agent import BucketRequest
from ..plan.container import container_request
from ..pod.errors import HostError
from ..pod.pod import Host
from ..pod.secret_values import read_secrets
from ..remote.ask import ask
from ..staging.requirements import worker_python
from ..transport.base import Transport
from .base import Finding, group, is_known
from .run_preflight import Report, Say, ask_all

_LIMIT = 200.0  # seconds; more than the agent's own limit
_ABOUT = "workdir"


def try_bucket(report: Report, transport: Transport, url: str, say: Say) -> None:
    """Write, list, read and delete an object on every host that answered; add failures to the report."""
    pod = report.pod
    built = [h for h in pod.hosts if _has_interpreter(report, h)]
    request: BucketRequest = {
        "python": worker_python(pod),
        "container": container_request(pod),
        "env": {**pod.env, **read_secrets(pod)},
        "url": url,
        "files": _sources(),
    }

    def question(host: Host) -> Bucket:
        answer: Bucket = ask(transport, pod, host, "bucket", request=request, limit=_LIMIT).answer
        return answer

    problems: dict[str, tuple[str, bool]] = {}
    for host, answer in ask_all(tuple(built), question, "trying the bucket", say).items():
        if isinstance(answer, HostError):
            report.unreached[host] = answer.reason
        elif answer["errors"]:
            problems[host] = "; ".join(answer["errors"]), answer["unreachable"]
    for (what, is_unreachable), hosts in group(problems):
        remedy = "check the hosts' network and the name of the server" if is_unreachable else ""
        report.findings.append(Finding(hosts, what, remedy, True, _ABOUT))
        report.bucket_unreachable |= is_unreachable
    later = tuple(h.name for h in pod.hosts if h.name in report.facts and h not in built)
    if later:
        what = f"{url} was not tested: a run first builds the environment with the package for it"
        report.findings.append(Finding(later, what, "run the check again after a first start", False, _ABOUT))
    report.shared = url if built and not problems and not report.unreached else None


def _has_interpreter(report: Report, host: Host) -> bool:
    """Return whether the host has the workers' interpreter with its packages."""
    facts = report.facts.get(host.name)
    return facts is not None and is_known(facts, "interpreter") and facts["interpreter"]["packages"] is not None


def _sources() -> dict[str, str]:
    """Return the source files, by path, of a minimal package with only the bucket check."""
    modules = (contract, bucket_digest, bucket_errors, bucket_library, bucket_client, bucket_check)
    files = {f"{module.__name__.replace('.', '/')}.py": Path(str(module.__file__)).read_text() for module in modules}
    return {
        **files,
        **{f"{package}/__init__.py": "" for package in ("podrun", "podrun/runtime", "podrun/runtime/storage")},
    }
