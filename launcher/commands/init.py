"""`podrun init`: write a first pod file, from a few questions or from options."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import yaml

from podrun.runtime.contract import UserError
from podrun.runtime.wording import counted

from ..agent.base.python_version import is_malformed, is_version, too_old
from ..inventory.base import LOCAL
from ..inventory.fits import misfit
from ..inventory.hostfile import read_hostfile
from ..inventory.pod_checks import check_pod
from ..inventory.pod_file import describe
from ..pod.slices import on_hosts, parse_slice
from ..staging.runtime_packages import pinned
from ..yamlfile.yaml_file import parse
from .new_file import check_target, write_file

SIMULATE = "simulate"
"""Answer that asks for a pod simulated on this machine."""


@dataclass(frozen=True)
class Question:
    """A question of `podrun init`."""

    name: str
    """Name of the option that gives the answer, without the dashes."""
    text: str
    required: bool = False
    remote: bool = False
    """True: ask only if the hosts are other machines."""


QUESTIONS = (
    Question(
        "slice",
        "How many machines do you have, and which GPUs or TPUs?\n"
        "  gpu-2x8    2 machines with 8 GPUs each\n"
        "  h100-16    16 H100, in machines of 8\n"
        "  v5e-16     a TPU slice, by its type (`podrun slices` lists them)\n"
        "  cpu-4x1    4 machines without either\n"
        "Machines",
        required=True,
    ),
    Question(
        "hosts",
        "Where are they?\n"
        "  gpu-a,10.0.0.7    their names or addresses, or entries of your ~/.ssh/config\n"
        "  tpu-[0-3]         a range: tpu-0, tpu-1, tpu-2, tpu-3\n"
        "  hosts.txt         a file with a line for each\n"
        f"  {LOCAL:<16}  this machine, with its own devices\n"
        f"  {SIMULATE:<16}  processes on this machine, with virtual CPU devices\n"
        "Hosts",
        required=True,
    ),
    Question("user", "Your user name there, such as me (empty: as in your SSH configuration)", remote=True),
    Question(
        "key", "Your private key, such as ~/.ssh/id_ed25519 (empty: your SSH agent and configuration)", remote=True
    ),
    Question(
        "workdir",
        "Folder for checkpoints there, such as /mnt/runs; the machines need not share it (empty: say it later)",
        remote=True,
    ),
    Question(
        "python",
        "A Python 3.11+ there that has JAX and flax, such as /opt/venv/bin/python; or 3.12, and podrun brings this Python if "
        "the machines have none (empty: podrun builds an environment with their python3; for both the machines need a way to "
        "the package index; if they have none, use `podrun init --offline`)",
        remote=True,
    ),
)


@dataclass(frozen=True)
class Answers:
    """The answers, by the names of `QUESTIONS`; None: not answered."""

    slice: str | None = None
    hosts: str | list[str] | None = None
    """`LOCAL`, `SIMULATE`, names or ranges, or the names in a hostfile."""
    user: str | None = None
    key: str | None = None
    workdir: str | None = None
    python: str | None = None
    requirements: str | None = None
    """A requirements.txt beside the pod file. There is no question about it."""
    offline: bool = False
    """This machine downloads the packages for the hosts. There is no question about it."""

    @property
    def is_here(self) -> bool:
        """Return True if the hosts are this machine."""
        return self.hosts in (LOCAL, SIMULATE)

    @property
    def ssh(self) -> dict[str, str]:
        """Return the section `ssh` of the pod file."""
        return {name: value for name, value in (("user", self.user), ("key", self.key)) if value is not None}

    def with_one(self, name: str, value: Any) -> Answers:
        """Return the answers with one more, by the name of its question."""
        return replace(self, **{name: value})

    def pod_file(self) -> dict[str, Any]:
        """Return the content of the pod file, as it is parsed from YAML."""
        where = {"transport": "local"} if self.hosts == SIMULATE else {"hosts": self.hosts}
        rest = {"slice": self.slice, **where, "ssh": self.ssh or None, "workdir": self.workdir, "python": self.python}
        values = {**rest, "requirements": self.requirements, "offline": self.offline or None}
        return {name: value for name, value in values.items() if value is not None}


def init(file: Path, given: Mapping[str, str | None], *, offline: bool, yes: bool, force: bool) -> None:
    """Write the pod file, after asking the questions that have no answer yet.

    Args:
        file: the pod file.
        given: answers from options, by the names of `QUESTIONS`.
        offline: the hosts have no way to a package index.
        yes: ask nothing.
        force: overwrite an existing file.

    Raises:
        UserError: an answer is invalid, or there is no terminal.
        KeyboardInterrupt: Ctrl-C.
    """
    check_target(file, "pod.yaml", "give another name, or --force to write over it", overwrite=force)
    answers = _known(file, given)
    if yes or not sys.stdin.isatty():
        _check_required(answers)
    else:
        try:
            answers = _ask(file, answers, given, offline)
        except click.Abort:
            raise KeyboardInterrupt from None
    if offline and answers.is_here:
        raise UserError("--offline is for other machines: this one uses what is installed here; leave it out")
    answers, message = _with_requirements(file, replace(answers, offline=offline))
    text = render(file, answers)
    problems = _problems(file, parse(text)[0])
    if problems:  # answers may contradict each other
        raise UserError("\n".join(problems))
    write_file(file, text)
    if message:
        click.echo(message)
    name = shlex.quote(str(file))
    click.echo(
        f"wrote {file}\nnext, see whether all hosts can be reached:\n  podrun check --pod {name}\n"
        f"then run a program of yours, or train by a job, for example one that `podrun new language_model` writes:\n"
        f"  podrun --pod {name} -- python my_train.py\n  podrun --pod {name} train.yaml"
    )


def _with_requirements(file: Path, answers: Answers) -> tuple[Answers, str]:
    """Write a requirements.txt with the runtime's packages, unless the hosts have an interpreter that has them.

    The interpreter of offline hosts is one to build the environment with.

    An existing file is used unchanged. Returns the answers with the file, and a message; it is empty if no file is
    needed.
    """
    has_packages = answers.python is not None and not is_version(answers.python)
    if answers.is_here or (has_packages and not answers.offline):
        return answers, ""
    path = file.with_name("requirements.txt")
    answers = replace(answers, requirements=path.name)
    if path.exists():
        return answers, f"using {path}: the hosts get an environment with it"
    write_file(path, pinned(parse_slice(answers.slice or "").kind))
    return answers, f"wrote {path}: the hosts get an environment with what podrun's runtime needs"


# --- answers --------------------------------------------------------------------------------------------------------


def _known(file: Path, given: Mapping[str, str | None]) -> Answers:
    """Return the answers that options give. Raises one UserError with all of their mistakes."""
    answers = Answers()
    problems = []
    for question in QUESTIONS:
        answer = given.get(question.name)
        if answer is None:
            continue
        try:
            answers = _with(file, answers, question, answer)
        except UserError as error:
            problems.append(f"--{question.name}: {error}")
    if problems:
        raise UserError("\n".join(problems))
    return answers


def _check_required(answers: Answers) -> None:
    missing = [f"--{q.name}" for q in QUESTIONS if q.required and getattr(answers, q.name) is None]
    if missing:
        others = ", ".join(f"--{q.name}" for q in QUESTIONS if not q.required)
        raise UserError(
            f"there is nobody to ask (--yes, or no terminal): give {' and '.join(missing)}; "
            f"these may be left out: {others}"
        )


def _ask(file: Path, answers: Answers, given: Mapping[str, str | None], offline: bool) -> Answers:
    """Ask the remaining questions. If an answer is invalid, explain why and repeat the question.

    `offline`: an environment is built, so there is no question about an interpreter that has the packages.
    """
    for question in QUESTIONS:
        if given.get(question.name) is not None or (question.remote and answers.is_here):
            continue
        if offline and question.name == "python":
            continue
        while True:
            default = None if question.required else ""
            answer = click.prompt(question.text, default=default, show_default=False).strip()
            if not answer and not question.required:
                break
            try:
                answers = _with(file, answers, question, answer)
                break
            except UserError as error:
                click.echo(f"  {error}")
    return answers


def _with(file: Path, answers: Answers, question: Question, answer: str) -> Answers:
    """Return the answers with one more. Raises UserError if it makes the pod file invalid."""
    value = _hosts(answer) if question.name == "hosts" else _here(answer) if question.name == "key" else answer
    answers = answers.with_one(question.name, value)
    if question.name == "python" and is_version(answer) and not is_malformed(answer):
        if old := too_old(answer):
            raise UserError(old)
        return answers  # it needs requirements, which come later
    if problems := _problems(file, answers.pod_file()):
        raise UserError("\n".join(problems))
    return answers


def _hosts(answer: str) -> str | list[str]:
    if answer not in (LOCAL, SIMULATE) and ("/" in answer or Path(answer).is_file()):
        return [host.name for host in read_hostfile(Path(answer)).hosts]
    return answer


def _here(path: str) -> str:
    """Return a typed path as an absolute one. In the pod file, a relative path would be relative to the file's folder."""
    return path if path.startswith("~") else str(Path(path).absolute())


def _problems(file: Path, values: dict[str, Any]) -> list[str]:
    """Return the mistakes in a possibly incomplete pod file, without line numbers and keys."""
    described = describe(file, values, {})
    rows = [*described.mistakes, *check_pod(described, other_hosts="hosts" not in values)]
    problems = [text.partition(": ")[2] for _, text in rows]
    if described.hosts and described.file.slice:
        what = misfit(parse_slice(described.file.slice), len(described.hosts))
        problems += [what] if what else []
    return problems


# --- the file -------------------------------------------------------------------------------------------------------


def render(file: Path, answers: Answers) -> str:
    """Return the text of a commented pod file."""
    slice = parse_slice(answers.slice or "")
    if isinstance(answers.hosts, list):
        slice = on_hosts(slice, len(answers.hosts))
    hosts = counted(slice.hosts, "host")
    lines = [
        "# A pod: what it is, where its hosts are, and what they need.",
        "#",
        f"#   podrun check --pod {shlex.quote(str(file))}",
        f"#   podrun --pod {shlex.quote(str(file))} train.yaml",
        "",
        f"slice: {answers.slice}    # {hosts} x {slice.devices_per_host} devices; `podrun slices` lists the TPU types",
        "",
    ]
    if answers.is_here:
        simulated = "transport: local    # the hosts are processes on this machine, with virtual CPU devices"
        where = simulated if answers.hosts == SIMULATE else f"hosts: [{LOCAL}]    # this machine, with its own devices"
        given = {name: getattr(answers, name) for name in ("workdir", "python")}
        return "\n".join([*lines, where, *(f"{key}: {_scalar(text)}" for key, text in given.items() if text), ""])
    return "\n".join([*lines, *_hosts_lines(answers.hosts or ""), "", *_ssh_lines(answers.ssh), "", *_rest(answers)])


def _hosts_lines(hosts: str | list[str]) -> list[str]:
    lines = ["# Names, addresses or entries of your SSH configuration, in the order of their process ids."]
    if isinstance(hosts, str):
        return [*lines, f"hosts: {_scalar(hosts)}"]
    return [*lines, "hosts:", *(f"  - {_scalar(host)}" for host in hosts)]


def _ssh_lines(ssh: Mapping[str, str]) -> list[str]:
    lines = ["# How they are reached. What is not said here comes from your SSH configuration."]
    lines += ["ssh:"] if ssh else ["# ssh:"]
    for key, example in (("user", "me"), ("key", "~/.ssh/id_ed25519")):
        lines.append(f"  {key}: {_scalar(ssh[key])}" if key in ssh else f"#   {key}: {example}")
    return [
        *lines,
        "#   jump: me@gateway.example.org      # a host in between",
        "#   host_keys: accept-new             # trust a host that is seen for the first time",
    ]


def _rest(answers: Answers) -> list[str]:
    values = answers.pod_file()

    def line(key: str, example: str, comment: str) -> str:
        setting = f"{key}: {_scalar(values[key])}" if key in values else f"# {key}: {example}"
        return f"{setting:<36}  # {comment}"

    return [
        line("workdir", "/mnt/shared/runs", "holds a folder for each run; the hosts need not share it"),
        line("python", '"3.12"', "Python 3.11+ on the hosts: a path, or a version, which podrun brings"),
        line(
            "requirements",
            "requirements.txt",
            "the workers run in a virtual environment with it, made at the first start",
        ),
        line("offline", "true", "the hosts have no package index: your machine downloads the packages and sends them"),
        line("env", "{HF_HOME: /mnt/shared/hf}", "environment variables of the workers"),
        line("secrets", "[HF_TOKEN]", "the same, with values from your environment or from secrets_file"),
        line("ports", "41000-41999", "where the hosts reach process 0; default: any"),
        "",
    ]


def _scalar(text: str | bool) -> str:
    """Return the text as a YAML value, in quotes if YAML would otherwise read something else."""
    if isinstance(text, bool):
        return str(text).lower()
    try:
        plain = parse(f"key: {text}    # comment")[0] == {"key": text}
    except yaml.YAMLError:
        plain = False
    return text if plain else json.dumps(text, ensure_ascii=False)
