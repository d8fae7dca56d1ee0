"""The options of srun by which pyxis starts the agent in an image."""

from __future__ import annotations

from podrun.launcher.pod.container import Container


def test_what_srun_is_given() -> None:
    container = Container("pyxis", "a#b:1", mounts=("/data", "/x:/y:ro"), options=("--container-writable",))
    assert container.holds_agent
    assert container.transport_options(["/home/.podrun"]) == [
        "--container-image=a#b:1",
        "--container-mount-home",
        "--no-container-remap-root",
        "--container-mounts=/home/.podrun:/home/.podrun,/data:/data,/x:/y:ro",
        "--container-writable",
    ]


def test_an_engine_that_starts_workers_gives_the_transport_nothing() -> None:
    assert Container("apptainer", "a.sif").transport_options(["/home/.podrun"]) == []
