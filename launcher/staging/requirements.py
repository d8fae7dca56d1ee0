"""The workers' virtual environment: its requirements, its key, and its path on the hosts."""

from __future__ import annotations

import hashlib
import re

from podrun.runtime.contract import UserError

from ..agent.base.places import environment_python
from ..agent.base.python_version import is_version
from ..agent.base.to_agent import EnvironmentRequest
from ..pod.pod import Pod
from .runtime_packages import lacking, space_needed

# matches lines that refer to another local file, which the hosts do not have
_LOCAL = re.compile(r"(-r|-c|--requirement|--constraint)[\s=]*(?!\S*://)\S|(-e|--editable)[\s=]*[./~]|\.{1,2}(/|$)")


def requirements_text(pod: Pod) -> str | None:
    """Return the text of the pod's requirements file; None if the pod has none. Raises UserError."""
    if pod.requirements is None:
        return None
    path = pod.requirements
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"cannot read the requirements {path}: {error.strerror}; see `requirements:` in the pod file"
        ) from None
    except UnicodeDecodeError:
        raise UserError(f"the requirements {path} are not UTF-8 text") from None
    for number, line in enumerate(text.splitlines(), 1):
        if _LOCAL.match(line.strip()):
            raise UserError(
                f"{path}, line {number}: {line.strip()!r} means a file on this machine, and only {path.name} itself is "
                "sent to the hosts; write what it contains here (`pip freeze` does so), or name the package, a URL, or "
                "an absolute path on the hosts"
            )
    return text


def check_runtime_packages(pod: Pod) -> None:
    """Raise UserError if the requirements certainly lack packages that podrun's runtime imports."""
    text = requirements_text(pod)
    lack = None if text is None else lacking(text)
    if lack is not None and lack.certain:
        raise UserError(
            f"{pod.requirements} lacks {', '.join(lack.names)}, which podrun's runtime imports; add: {lack.lines}"
        )


def environment_key(requirements_text: str, python: str, wheels: str = "") -> str:
    """Return the key of an environment: of what it is made from.

    Args:
        requirements_text: its requirements; comments do not count.
        python: the interpreter.
        wheels: digest of wheels that the requirements name by their place on this machine.
    """
    lines = (line.rstrip() for line in requirements_text.splitlines())
    wanted = [line for line in lines if line and not line.lstrip().startswith("#")]
    return hashlib.sha256("\n".join([python, *wanted, *([wheels] if wheels else [])]).encode()).hexdigest()[:16]


def _key_of(pod: Pod, text: str) -> str:
    """Return the key of the pod's environment. Raises UserError."""
    if not pod.offline or pod.requirements is None:
        return environment_key(text, pod.base_python)
    from .wheels import wheels_here  # slow to import

    return environment_key(text, pod.base_python, wheels_here(pod.requirements))


def environment_request(pod: Pod) -> EnvironmentRequest | None:
    """Return the part of a request that describes the environment to build; None: there is none. Raises UserError."""
    text = requirements_text(pod)
    if text is None:
        return None
    return {
        "key": _key_of(pod, text),
        "text": text,
        "space": space_needed(text),
        "wheels": "" if pod.offline else None,
        "brings": "" if is_version(pod.base_python) else None,
    }


def worker_python(pod: Pod) -> str:
    """Return the workers' interpreter on the hosts, for the plan. Raises UserError."""
    text = requirements_text(pod)
    return pod.base_python if text is None else environment_python(pod.home, _key_of(pod, text))
