"""Mistakes in the options of commands that look at runs and hosts."""

from __future__ import annotations

import pytest

from .conftest import HERE, Podrun


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["exec", "--", "ls"], "no hosts: say which, for example podrun exec --pod pod.yaml"),
        (["exec", *HERE], "no command: write it after `--`"),
        (["exec", *HERE, "ls"], "no command: write it after `--`"),
        (["exec", "--run", "zzzz", "--", "ls"], "there are no runs in"),
        (["exec", "--run", "zzzz", *HERE, "--", "ls"], "a run names its hosts already"),
        (["exec", "--simulate", "--", "ls"], "no slice"),
        (["exec", "--hosts", "a,b", "--timeout", "0", "--", "ls"], "0.0 is not in the range"),
        (["ssh", "x"], "no hosts: say which, for example podrun ssh"),
        (["ssh", *HERE, "host-0"], "simulated by the CPU of this machine: there is nothing to log in to"),
        (["ssh", "--hosts", "tpu-[0-3]", "gpu-1"], "there is no host 'gpu-1'; the pod has tpu-[0-3]"),
        (["logs", "--since", "yesterday"], "--since yesterday: that is not a time; write how long ago"),
        (["export", "zzzz"], "there is no folder "),
        (["export", "zzzz"], "zzzz, and there are no runs in"),
        (["export", "runs/zzzz"], "runs/zzzz does not exist here; give a workdir on this machine, or the id of a run"),
        (["export", __file__], ".py is a file; give a workdir"),
        (["export", ".", "-o", "/tmp"], "/tmp is a folder; give a file in it, for example -o /tmp/model.safetensors"),
        (["export", ".", "--format", "onnx"], "'onnx' is not one of 'safetensors', 'npz'"),
        (["export", ".", "--step", "last"], "'last' is not a step; give a number, or best"),
        (["evaluate", "zzzz"], "there is no folder "),
        (["evaluate", ".", "--step", "-1"], "'-1' is not a step; give a number, or best"),
        (["generate", "."], "give either --prompt TEXT"),
        (["generate", ".", "-p", "a", "--temperature", "nan"], "nan is not a finite number"),
        (["generate", ".", "-p", "a", "--stop", ""], "--stop: an empty text is the end of every text; leave it out"),
        (["generate", ".", "-p", "\udcff"], "--prompt: the text is not UTF-8"),
        (["generate", ".", "--batch", "none.txt"], "--batch none.txt cannot be read: No such file or directory"),
        (["generate", ".", "--batch", "/dev/null"], "--batch /dev/null has 0 prompts; give from 1 to 10000"),
        (["clean", "--older-than", "7"], "--older-than 7: that is not a duration; write for example 90s"),
        (["clean", "zzzz"], "there are no runs in"),
        (["clean", "zzzz", *HERE], "a run names its hosts already"),
    ],
)
def test_mistakes(podrun: Podrun, args: list[str], message: str) -> None:
    """Messages say what is wrong, and what to write instead; never a traceback."""
    done = podrun(*args)
    assert done.code == 2
    assert done.err.startswith("podrun: ") and message in done.err
    assert "Traceback" not in done.err
