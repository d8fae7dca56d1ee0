"""The certificate of a run: its processes prove by it to JAX's coordination service that they belong to the run.

Exists in memory only: in this process, in the environment of the workers, and in their memory. A launcher that goes on with
the run makes another one for the next attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from podrun.runtime.contract import CERTIFICATE_URI, ENV_CERTIFICATE, JAX_TLS

from ..plan.spec import RunSpec

_FROM = datetime(2000, 1, 1, tzinfo=UTC)
_UNTIL = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""No well-defined end (RFC 5280, 4.1.2.5). The certificate ends with its run, and clocks of hosts may be wrong."""


def certificate_of(spec: RunSpec) -> Mapping[str, str]:
    """Return the environment variable with a new certificate and its key; nothing for a run that needs none.

    A run on one machine needs none, because it listens at loopback; nor does one whose user gives JAX certificates.
    """
    given = {**spec.pod.env, **spec.job.launch.env}
    if spec.pod.traits.is_simulated or len(spec.pod.hosts) == 1 or any(name.startswith(JAX_TLS) for name in given):
        return {}
    import base64

    return {ENV_CERTIFICATE: base64.b64encode(make_certificate(spec.run_id)).decode()}


def make_certificate(run_id: str) -> bytes:
    """Return a certificate that is its own authority, and its key, as PEM.

    All processes of a run have the same one: JAX accepts any certificate of the authority, from clients and from the service,
    so with one for each process none could do less.
    """
    from cryptography import x509  # only runs on several machines need these: they take a start 40 ms
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "podrun")])
    uses = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign"), False
    )
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), _FROM, _UNTIL)
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(CERTIFICATE_URI + run_id)]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .add_extension(
            x509.KeyUsage(digital_signature=True, key_cert_sign=True, encipher_only=False, decipher_only=False, **uses),
            True,
        )
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
