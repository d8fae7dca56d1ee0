"""Run pip as if for another interpreter: `python -m podrun.launcher.staging.pip_for_target MARKERS -- ARGUMENTS OF PIP`.

pip's options choose wheels for another interpreter, but it evaluates the markers of requirements, such as
`python_version < "3.12"`, for the interpreter that runs it. This program replaces the values of markers; MARKERS is JSON.
It ends with its stdin, so that nothing is left of a podrun that was killed.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import threading
from importlib import import_module
from typing import Any


def main() -> None:
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    values: dict[str, str] = json.loads(sys.argv[1])
    markers: Any = import_module("pip._vendor.packaging.markers")
    values_here = markers.default_environment
    markers.default_environment = lambda: {**values_here(), **values}
    sys.argv = ["pip", *sys.argv[3:]]
    runpy.run_module("pip", run_name="__main__", alter_sys=True)


def _end_with_stdin() -> None:
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
