"""The tables by which the rooms below know an engine: what they name is there, and is what the table says."""

from __future__ import annotations

import pytest

from podrun.launcher.inventory.base import INVENTORIES
from podrun.launcher.inventory.hosts_from import SOURCES
from podrun.launcher.pod.container import ENGINES, ContainerEngine
from podrun.launcher.pod.lazy import load
from podrun.launcher.pod.traits import QUEUES, TRAITS
from podrun.launcher.rundir.queues import Queue, load_queue
from podrun.launcher.transport.base import Transport


@pytest.mark.parametrize("name", TRAITS)
def test_a_transport(name: str) -> None:
    assert issubclass(load(TRAITS[name].place), Transport)


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_of_hosts(name: str) -> None:
    assert callable(load(SOURCES[name]))


@pytest.mark.parametrize("name", QUEUES)
def test_a_queue(name: str) -> None:
    """Its name is that of an option which may have a value, the options of a job."""
    queue = load_queue(name)
    assert isinstance(queue, Queue)
    assert queue.title
    assert (INVENTORIES[name].metavar or "").startswith("[")


@pytest.mark.parametrize("name", ENGINES)
def test_a_container_engine(name: str) -> None:
    """It starts either the workers in the image, or the agent as well."""
    engine = load(ENGINES[name])
    assert isinstance(engine, ContainerEngine)
    holds_agent = [engine.transport_options is not None, bool(engine.transport)]
    assert [engine.command is not None, *holds_agent].count(True) == 1
    assert bool(engine.needs) == any(holds_agent)
    if engine.transport:
        assert issubclass(load(engine.transport), Transport)
