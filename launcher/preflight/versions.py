"""Rules about the workers' Python, packages and driver: installed, new enough, and the same on all hosts. PURE."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..agent.base.from_agent import Interpreter
from ..agent.base.protocol import MISSING
from ..agent.base.python_version import RUNTIME
from ..pod.pod import Pod
from ..staging.runtime_packages import BELOW, NEEDED, NEW_FLAX, NEW_JAX, TENSORBOARD
from .base import FactsByHost, Finding, error_of, group, is_known, judge_each, minority_findings, name_hosts

_MUST_AGREE = ("jax", "jaxlib")  # different versions may compile different programs, which deadlock
_SHOULD_AGREE = ("flax", "optax", "orbax-checkpoint", "numpy")
Interpreters = Mapping[str, Interpreter]
"""Interpreters by host."""
_UNKNOWN = (1 << 30,)
"""Value of a version without numbers, which counts as new enough."""
_CUDA = ("jax-cuda12-plugin", "jax-cuda12-pjrt", "jax-cuda13-plugin", "jax-cuda13-pjrt")


def check_versions(pod: Pod, facts: FactsByHost, *, program: bool) -> list[Finding]:
    interpreters = {host: f["interpreter"] for host, f in facts.items() if is_known(f, "interpreter")}
    # skip hosts where the run will build the environment
    installed = {host: i for host, i in interpreters.items() if i["packages"] is not None}
    return [
        *_unusable(pod, facts, fatal=not program),
        *_too_old_python(pod, interpreters, fatal=not program),
        *_python_differs(pod, interpreters),
        *_missing(pod, installed, fatal=not program),
        *_too_old(pod, installed, fatal=not program),
        *_unfit_pair(installed, fatal=not program),
        *([] if program else _untried(installed)),
        *_packages_differ(pod, installed),
        *_driver(pod, facts),
    ]


def _unusable(pod: Pod, facts: FactsByHost, *, fatal: bool) -> list[Finding]:
    errors = {host: why for host, f in facts.items() if (why := error_of(f, "interpreter"))}
    where = "that all hosts have" if pod.traits.needs_staging else "that works"
    remedy = f"set {_key(pod)} to the absolute path of an interpreter {where}"
    if pod.container:
        remedy = f"try to start the image there, and set {_key(pod)} to an interpreter in it"
        if "://" in pod.container.image:
            remedy += "; a run waits until the image is pulled, a check does not"
    return [
        Finding(hosts, f"the workers' Python cannot be used: {error}", remedy, fatal, "python")
        for error, hosts in group(errors)
    ]


def _too_old_python(pod: Pod, interpreters: Interpreters, *, fatal: bool) -> list[Finding]:
    required = ".".join(map(str, RUNTIME))
    old = {
        host: f"{i['executable']} is Python {i['version']}, but podrun's runtime needs {required} or newer"
        for host, i in interpreters.items()
        if numbers(i["version"])[:2] < RUNTIME
    }
    remedy = (
        f"install Python {required} {'in the image' if pod.container else 'there'}, and set {_key(pod)} to its path"
    )
    if pod.traits.needs_staging and not pod.container:
        remedy += ', or write `python: "3.12"` and `requirements: requirements.txt` there, and podrun brings one'
    return [Finding(hosts, what, remedy, fatal, "python") for what, hosts in group(old)] if fatal else []


def _python_differs(pod: Pod, interpreters: Interpreters) -> list[Finding]:
    minor = {host: ".".join(i["version"].split(".")[:2]) for host, i in interpreters.items()}
    remedy = f"set {_key(pod)} to a path with the same version on all hosts"
    return minority_findings("Python", minor, remedy, fatal=True, about="python")


def _missing(pod: Pod, interpreters: Interpreters, *, fatal: bool) -> list[Finding]:
    needs = (*NEEDED, *(("libtpu",) if pod.platform == "tpu" and "TPU_LIBRARY_PATH" not in pod.env else ()))
    missing = {}
    for host, i in interpreters.items():
        names = [name for name in needs if packages(i).get(name, MISSING) == MISSING]
        if pod.platform == "cuda" and not any(_has(i, name) for name in _CUDA):
            names.append("jax[cuda12] or jax[cuda13]")
        if names:
            missing[host] = f"no {', '.join(names)} for {i['executable']} (Python {i['version']})"
    findings = [Finding(hosts, what, _install(pod), fatal, "packages") for what, hosts in group(missing)]
    plots = {host: True for host, i in interpreters.items() if host not in missing and not _has(i, TENSORBOARD)}
    if plots and fatal:
        remedy = "install it there, or write `log: {tensorboard: false}` in train.yaml"
        findings.append(Finding(tuple(plots), "no tensorboardX, so no TensorBoard files", remedy, False, "packages"))
    return findings


def check_imports(pod: Pod, facts: FactsByHost, imports: Mapping[str, str]) -> list[Finding]:
    """Return the findings for hosts that lack modules of a user's program.

    Args:
        pod: the pod.
        facts: facts of its hosts, which were asked for these modules.
        imports: `file:line` of the import, by module.
    """
    missing = {}
    for host, f in facts.items():
        names = [name for name in f["lacks"] if name in imports] if is_known(f, "lacks") else []
        if names and is_known(f, "interpreter"):
            what = ", ".join(f"{name} ({imports[name]})" for name in names)
            missing[host] = f"no module {what} for {f['interpreter']['executable']}"
    return [Finding(hosts, what, _install(pod), False, "packages") for what, hosts in group(missing)]


def _too_old(pod: Pod, interpreters: Interpreters, *, fatal: bool) -> list[Finding]:
    old = {}
    for host, i in interpreters.items():
        names = [
            f"{name} {packages(i)[name]} (needs {least})"
            for name, least in NEEDED.items()
            if _has(i, name) and numbers(packages(i)[name]) < numbers(least)
        ]
        if names:
            old[host] = f"too old for podrun's runtime: {', '.join(names)}"
    return [Finding(hosts, what, _install(pod), fatal, "packages") for what, hosts in group(old)] if fatal else []


def _unfit_pair(interpreters: Interpreters, *, fatal: bool) -> list[Finding]:
    """Return findings about hosts whose flax cannot be imported with their JAX; pip allows such pairs."""
    unfit = {}
    for host, i in interpreters.items():
        if not (_has(i, "jax") and _has(i, "flax")):
            continue
        jax, flax = packages(i)["jax"], packages(i)["flax"]
        new_jax, new_flax = numbers(jax) >= numbers(NEW_JAX), numbers(flax) >= numbers(NEW_FLAX)
        if new_jax and not new_flax:
            unfit[host] = (
                f"flax {flax} cannot be imported with jax {jax}: it needs jax below {NEW_JAX}",
                f"flax {NEW_FLAX}",
            )
        if new_flax and not new_jax:
            unfit[host] = f"flax {flax} cannot be imported with jax {jax}: it needs jax {NEW_JAX}", f"jax {NEW_JAX}"
    return [
        Finding(hosts, what, f"install {remedy} or newer there; the pairs are in docs/versions.md", fatal, "packages")
        for (what, remedy), hosts in group(unfit)
    ]


def _untried(interpreters: Interpreters) -> list[Finding]:
    new = {}
    for host, i in interpreters.items():
        names = [
            f"{name} {packages(i)[name]} (below {below})"
            for name, below in BELOW.items()
            if _has(i, name) and numbers(below) <= numbers(packages(i)[name]) < _UNKNOWN
        ]
        if names:
            new[host] = f"newer than the versions with which podrun's runtime was tested: {', '.join(names)}"
    remedy = "if a run fails there, install a version below the limit"
    return [Finding(hosts, what, remedy, False, "packages") for what, hosts in group(new)]


def _packages_differ(pod: Pod, interpreters: Interpreters) -> list[Finding]:
    platform_packages = {"tpu": ("libtpu",), "cuda": _CUDA}.get(pod.platform, ())
    return [
        *_differ(pod, interpreters, (*_MUST_AGREE, *platform_packages), fatal=True),
        *_differ(pod, interpreters, _SHOULD_AGREE, fatal=False),
    ]


def _differ(pod: Pod, interpreters: Interpreters, names: tuple[str, ...], *, fatal: bool) -> list[Finding]:
    """Return a finding for each group of hosts whose package versions deviate. `_missing` reports missing packages."""
    complete = {host: packages(i) for host, i in interpreters.items() if _has(i, "jax") and _has(i, "jaxlib")}
    if pod.platform == "cuda":
        complete = {host: p for host, p in complete.items() if any(_has(interpreters[host], name) for name in _CUDA)}
    groups = group({host: tuple(p.get(name, MISSING) for name in names) for host, p in complete.items()})
    findings = []
    for versions, hosts in groups[1:]:
        usual, usual_hosts = groups[0]
        pairs = [(n, a, b) for n, a, b in zip(names, versions, usual, strict=True) if a != b]
        # skip plugins for another CUDA version
        odd = [(n, a, b) for n, a, b in pairs if MISSING not in (a, b) or n in _CUDA]
        if odd:
            these_versions, usual_versions = (", ".join(f"{o[0]} {o[i]}" for o in odd) for i in (1, 2))
            what = f"{these_versions}, but {usual_versions} on {name_hosts(usual_hosts)}"
            findings.append(Finding(hosts, what, _same(pod), fatal, "packages"))
    return findings


def _driver(pod: Pod, facts: FactsByHost) -> list[Finding]:
    if pod.platform != "cuda":
        return []
    remedy = "install the same driver on all hosts, and restart them"
    loaded = {host: f["driver"] for host, f in facts.items() if is_known(f, "driver") and f["driver"]}
    return [
        *judge_each(facts, "driver", _no_driver, about="driver"),
        *minority_findings("NVIDIA driver", loaded, remedy, fatal=True, about="driver"),
    ]


def _no_driver(version: str | None) -> tuple[str, str, bool] | None:
    if version:
        return None
    return "no NVIDIA driver is loaded", "install it there (`nvidia-smi` must work), or leave the host out", True


def _key(pod: Pod) -> str:
    """Return what sets the workers' interpreter, for messages: `launch.python`, or a key of the pod file."""
    if not pod.traits.needs_staging:
        return "launch.python"
    return f"`{'container.python' if pod.container else 'python'}:` in a pod file for --pod"


def _install(pod: Pod) -> str:
    if pod.container:
        return f"install them in the image {pod.container.image}"
    if pod.requirements:
        return f"add them to {pod.requirements}, from which podrun builds the workers' environment"
    if not pod.traits.needs_staging:
        return f"install them with `{pod.base_python} -m pip install`, or choose a Python that has them: launch.python=PATH"
    return (
        "set `python:` in a pod file for --pod to an interpreter that has them, or `requirements:` to a requirements.txt, "
        "from which podrun builds an environment on every host"
    )


def _same(pod: Pod) -> str:
    if pod.container:
        return f"put the same image on all hosts as {pod.container.image}"
    if pod.requirements:
        return f"pin the versions in {pod.requirements} with =="
    return (
        "install the same versions on all hosts, or set `requirements:` in a pod file for --pod to a requirements.txt"
    )


def packages(interpreter: Interpreter) -> dict[str, str]:
    """Return the versions of the packages; none if the environment is still to be built."""
    return interpreter["packages"] or {}


def _has(interpreter: Interpreter, name: str) -> bool:
    return packages(interpreter).get(name, MISSING) != MISSING


def numbers(version: str) -> tuple[int, ...]:
    """Parse the numbers of a version: `0.10.2.dev1` is (0, 10, 2)."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(n) for n in match[0].split(".")) if match else _UNKNOWN
