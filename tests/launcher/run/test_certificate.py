"""Runs on several machines get a certificate of their own, which is a secret."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.plan.plan import make_plan
from podrun.launcher.plan.spec import RunSpec
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.secret_values import Secrets
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.run.certificate import certificate_of
from podrun.runtime.config import Launch
from podrun.runtime.contract import CERTIFICATE_URI, ENV_CERTIFICATE

from ..rundir.made import spec_of

ON_HOSTS = Pod(parse_slice("cpu-2x1"), (Host("a", "10.0.0.1"), Host("b", "10.0.0.2")), transport="ssh", platform="cpu")


def on(pod: Pod, env: dict[str, str] | None = None) -> RunSpec:
    spec = spec_of()
    return replace(spec, pod=pod, job=replace(spec.job, launch=Launch(env=env or {})))


def test_it_is_its_own_authority_and_names_its_run() -> None:
    pem = base64.b64decode(certificate_of(on(ON_HOSTS))[ENV_CERTIFICATE])
    certificate, key = x509.load_pem_x509_certificate(pem), serialization.load_pem_private_key(pem, None)
    assert key.public_key() == certificate.public_key()
    certificate.verify_directly_issued_by(certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [CERTIFICATE_URI + spec_of().run_id]


def test_each_start_has_another() -> None:
    assert certificate_of(on(ON_HOSTS)) != certificate_of(on(ON_HOSTS))


@pytest.mark.parametrize(
    "spec",
    [
        on(simulated_pod(parse_slice("cpu-2x1"))),
        on(replace(ON_HOSTS, slice=parse_slice("cpu-1x1"), hosts=ON_HOSTS.hosts[:1])),
        on(ON_HOSTS, {"JAX_MTLS_CERT_FILE": "/etc/mine.pem"}),
        on(replace(ON_HOSTS, env={"JAX_MTLS_CERT_FILE": ""})),
    ],
    ids=["simulated", "one host", "the job has one", "the pod has one"],
)
def test_runs_without_one(spec: RunSpec) -> None:
    assert certificate_of(spec) == {}


def test_workers_get_it_and_records_do_not() -> None:
    spec = on(ON_HOSTS)
    given = certificate_of(spec)
    plan = make_plan(spec, secrets=Secrets({"TOKEN": "hunter2"})).with_secrets(given)
    assert all(worker["env"]["TOKEN"] == "hunter2" for host in plan.hosts for worker in host.spec["processes"])
    assert [worker["env"][ENV_CERTIFICATE] for host in plan.hosts for worker in host.spec["processes"]] == [
        given[ENV_CERTIFICATE]
    ] * 2
    for text in (plan.to_json(), plan.render(), repr(plan)):
        assert given[ENV_CERTIFICATE] not in text and "hunter2" not in text
