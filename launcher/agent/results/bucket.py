"""`agent bucket`: test access to a bucket with the workers' interpreter."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any, Dict

from ..base.container import container_env, inside
from ..base.stdin import read_request

if TYPE_CHECKING:
    from ..base.from_agent import Bucket
    from ..base.to_agent import BucketRequest

LIMIT = 150.0  # seconds, for several tries of an unreachable server
_MODULE = "podrun.runtime.storage.bucket_check"


def try_bucket() -> None:
    request: BucketRequest = read_request("bucket")
    folder = tempfile.mkdtemp(prefix="podrun-bucket-")
    try:
        answer = _ask(folder, request)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _ask(folder: str, request: BucketRequest) -> Bucket:
    for path, text in request["files"].items():
        place = os.path.join(folder, path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "w") as file:
            file.write(text)
    container = request["container"]
    python = request["python"] if container else os.path.expanduser(request["python"])
    try:
        done = subprocess.run(
            inside(container, [python, "-m", _MODULE, request["url"]]),
            cwd=folder,  # Python imports from it first
            env=container_env(container, dict(os.environ, **request["env"]), request["env"]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=LIMIT,
        )
        answer: Dict[str, Any] = json.loads(done.stdout.decode(errors="replace").splitlines()[-1])
        return {"errors": [str(error) for error in answer["errors"]], "unreachable": bool(answer["unreachable"])}
    except OSError as error:
        why = "%s cannot be started: %s" % (python, error.strerror)
    except subprocess.TimeoutExpired:
        return {"errors": ["%s: no answer within %g s" % (request["url"], LIMIT)], "unreachable": True}
    except (ValueError, IndexError, KeyError, TypeError):
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["it ended with %d" % done.returncode]
        why = "%s cannot test it: %s" % (python, lines[-1][:300])
    return {"errors": [why], "unreachable": False}
