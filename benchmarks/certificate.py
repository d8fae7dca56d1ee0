"""Measure what mutual TLS adds to the start of a pod: two processes join JAX's coordination service with it and without.

    .venv-newest/bin/python benchmarks/certificate.py [--rounds 16]

It needs JAX 0.12 or newer, as `make newest` installs it. Each round starts two processes on this machine twice, in changing
order: they import JAX, join, wait for each other once, and end. All figures are seconds of CPU: of the two processes, of
their part from `jax.distributed.initialize` on, and of making the certificate once. Ratios are round by round.
"""

from __future__ import annotations

import argparse
import base64
import inspect
import os
import resource
import socket
import statistics
import subprocess
import sys
import time

from setting import print_setting

WORKER = """\
import sys, time
import jax
from jax.experimental import multihost_utils
from podrun.runtime.certificate import mutual_tls
begin = time.process_time()
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]), cluster_detection_method="deactivate", **mutual_tls())
multihost_utils.sync_global_devices("joined")
print(time.process_time() - begin)
"""
NAMES = ("whole", "join")


def why_not() -> str | None:
    """Return why this Python cannot measure it; None if it can."""
    import jax

    if "mtls_cert_file" in inspect.signature(jax.distributed.initialize).parameters:
        return None
    return f"JAX {jax.__version__} has no mutual TLS; `make newest` installs a newer one"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=16)
    options = parser.parse_args()
    print_setting()
    if reason := why_not():
        raise SystemExit(f"certificate.py: {reason}")
    from podrun.launcher.run.certificate import make_certificate
    from podrun.runtime.contract import ENV_CERTIFICATE

    begin = time.process_time()
    with_tls = {ENV_CERTIFICATE: base64.b64encode(make_certificate("run")).decode()}
    made = time.process_time() - begin
    start(with_tls)  # reads from the disk what later starts find in memory
    pairs = []
    for number in range(options.rounds):
        first, second = ({}, with_tls) if number % 2 else (with_tls, {})
        one, other = start(first), start(second)
        pairs.append((one, other) if number % 2 else (other, one))
        print(f"round {number}: whole {pairs[-1][0][0]:.2f} s, with TLS {pairs[-1][1][0]:.2f} s", flush=True)
    print()
    for place, name in enumerate(NAMES):
        off, on = (statistics.median(pair[has_tls][place] for pair in pairs) for has_tls in (0, 1))
        ratio = statistics.median(pair[1][place] / pair[0][place] for pair in pairs)
        print(f"{name:<6} without TLS {off:.3f} s, with TLS {on:.3f} s, median ratio {ratio:.3f}")
    print(f"the certificate, with the import of what makes it: {made:.3f} s")


def start(certificate: dict[str, str]) -> tuple[float, float]:
    """Start two processes that join each other; return their seconds of CPU, and those from the beginning of the join on."""
    env = {**os.environ, "JAX_PLATFORMS": "cpu", **certificate}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, address, str(number)], env=env, stdout=subprocess.PIPE, text=True
        )
        for number in (0, 1)
    ]
    printed = [worker.communicate(timeout=300)[0] for worker in workers]
    if any(worker.returncode for worker in workers):
        raise SystemExit("a process could not join the other")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    whole = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return whole, sum(float(text.splitlines()[-1]) for text in printed)


if __name__ == "__main__":
    main()
