"""Explain why srun did not start a command, with remedies."""

from __future__ import annotations

import re

from .job import why_over

_BUSY = "SLURM starts no step there, because its resources are taken; end what else runs in this job"
_DOWN = "SLURM has taken the node away, or set it down: `sinfo -R` says why; cancel this job, and ask for another"
_REASONS = (
    (r"Invalid job id|already completing or completed|Job has finished|Expired|has expired", None),
    (r"Required node not available|node is down|Communication connection failure|Unable to contact node", _DOWN),
    (
        r"Socket timed out on send/recv|Unable to contact slurm controller|Connection refused",
        "SLURM's controller does not answer; is slurmctld up? (scontrol ping)",
    ),
    (
        r"[Mm]unge|Invalid authentication credential|Protocol authentication error",
        "SLURM does not accept this user's credential: is munged up on both machines, with one key and equal clocks?",
    ),
    (r"Access/permission denied|Invalid user id", "SLURM does not let this user start steps in the job; is it yours?"),
    (r"Requested nodes are busy|step creation temporarily disabled|Memory required by task is not available", _BUSY),
    (
        r"Requested node configuration is not available|not in this job|Invalid node name|Zero Bytes",
        "the node is not one of this job any more (SLURM removes nodes that fail or are set down: `sinfo -R`), or it lacks "
        "resources of the step; look at `scontrol show job`",
    ),
    (r"Invalid generic resource|More processors requested|Unable to create step", "SLURM has made no step there"),
)
_SAID = re.compile(
    r"^srun: (?:error|fatal): (.*)$|^srun: (Job \S+ step creation temporarily disabled.*)$", re.MULTILINE
)
_NO_PYXIS = re.compile(r"^srun: unrecognized option '--container-", re.MULTILINE)
_PYXIS = re.compile(r"error: pyxis: (.*\S)")
_NOT_WHY = re.compile(r"child \d+ failed|printing enroot|container was not started|container start failed")
_WHY_OF_ENROOT = re.compile(r"\[ERROR\]|failed|^curl: ")
_MISSING = re.compile(r"execve\(\): (\S+): (.+)$", re.MULTILINE)


def why_not_started(stderr: str, job: str) -> str | None:
    """Return why srun did not start a command, with a remedy; None if `stderr` does not say so. May query SLURM."""
    if image := _why_no_image(stderr):
        return image
    messages = [first or second for first, second in _SAID.findall(stderr)]
    if missing := _MISSING.search(stderr):
        advice = "give an absolute path that the nodes have (`python:` in a pod file for --pod)"
        return f"no {missing[1]} there ({missing[2]}); {advice}"
    for pattern, remedy in _REASONS:
        for line in messages:
            if re.search(pattern, line):
                over = why_over(job)
                return over or (f"{remedy} ({line})" if remedy else f"the SLURM job {job} has ended ({line})")
    return None


def _why_no_image(stderr: str) -> str | None:
    """Return why pyxis did not start the image; None if `stderr` does not say so."""
    if _NO_PYXIS.search(stderr):
        return "its srun knows no containers: pyxis is not installed there; take another `engine` in the pod file"
    lines = _PYXIS.findall(stderr)
    first = [line for line in lines if not line.startswith(" ") and not _NOT_WHY.match(line)]
    of_enroot = [line.strip() for line in lines if line.startswith(" ") and _WHY_OF_ENROOT.search(line.strip())]
    words = "; ".join([*first[:1], *of_enroot[:1]])
    return f"pyxis cannot start the image: {words[:400]}; see `container:` in the pod file" if words else None


def command_stderr(stderr: str) -> str:
    """Return the command's own stderr, without SLURM's lines about its end."""
    return "\n".join(line for line in stderr.splitlines() if not line.startswith(("srun: ", "slurmstepd"))).strip()
