"""Break the server of a run's bucket at random, and judge what podrun does: a line for each seed.

    python benchmarks/chaos_bucket.py [--runs 20] [--seed 1]

Each seed is a job on a simulated pod of two hosts whose workdir is on gs:// (fake-gcs-server) or s3:// (moto), behind a proxy
that breaks 3 to 15 % of all requests: 503, 429 with Retry-After, cut connections, answers that are lost or late, wrong
bytes, expired tokens, skewed clocks. Some runs are killed, some refused for good from some request on. Then the same
command is given again, on the same host or one without any file of the run. It is right if every command ends with 0 or the
true cause, the losses in the bucket are those of a run in a folder, bit for bit, every checkpoint that counts as complete has
exactly the bytes of its manifest, `keep` holds, and nothing half-written is left. `--seed N --runs 1` repeats one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from setting import print_setting

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.conftest import make_sandbox
from tests.pod.bucket_chaos import JOB, BucketCase


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the first run; the others count on from it")
    options = parser.parse_args()
    print_setting()
    faults: Counter[str] = Counter()
    right = 0
    with tempfile.TemporaryDirectory(prefix="podrun-chaos-bucket-") as folder:
        sandbox = make_sandbox(_new(Path(folder), "folder"))
        done = sandbox.podrun(*JOB, "--workdir=work")
        assert done.returncode == 0, done.stderr
        expected = sandbox.losses("work")
        print(f"in a folder: final loss {expected[max(expected)]!r}", flush=True)
        for seed in range(options.seed, options.seed + options.runs):
            result = BucketCase(_new(Path(folder), str(seed)), seed).execute(expected)
            faults += result.faults
            right += not result.wrong
            broken = ", ".join(f"{name} {count}" for name, count in sorted(result.faults.items()))
            print(f"{result.case}: {'WRONG' if result.wrong else 'right'} in {result.seconds:.0f} s; {result.first}")
            print("".join(f"    {line}\n" for line in [broken, *result.wrong]), end="", flush=True)
    print(f"{right} of {options.runs} right; faults: {', '.join(f'{n} {c}' for n, c in sorted(faults.items()))}")
    sys.exit(right != options.runs)


def _new(folder: Path, name: str) -> Path:
    path = folder / name
    path.mkdir()
    return path


if __name__ == "__main__":
    main()
