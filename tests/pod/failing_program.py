"""A program of a user that fails in one of many ways: `failing_program.py JOIN WAY`; its last process fails."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time

JOIN, WAY = sys.argv[1:3]
NUMBER, COUNT = int(os.environ["PROCESS_ID"]), int(os.environ["NUM_PROCESSES"])
FAILS = NUMBER == COUNT - 1


def boom() -> None:
    raise ValueError(f"boom in {WAY}")  # the line that podrun is to name


def fail() -> None:
    if WAY == "raise":
        boom()
    elif WAY == "thread":
        threading.Thread(target=boom).start()
        time.sleep(600)
    elif WAY == "hanging_atexit":
        atexit.register(time.sleep, 600)
        boom()
    elif WAY == "exit":
        sys.exit(3)
    elif WAY == "raise_exit":
        raise SystemExit(4)
    elif WAY == "exit_message":
        sys.exit("cannot go on")
    elif WAY == "os_exit":
        os._exit(9)
    elif WAY == "abort":
        os.abort()
    elif WAY == "segfault":
        import ctypes

        ctypes.string_at(0)
    elif WAY == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif WAY == "own_hook":
        sys.excepthook = lambda *_: print("somebody's own report", file=sys.stderr)
        boom()


def main() -> None:
    if WAY == "before" and FAILS:
        boom()
    if JOIN == "bare":
        import jax

        jax.distributed.initialize()
    elif JOIN == "helper":
        from podrun.runtime.distributed import initialize

        initialize()
    elif JOIN == "torch":
        import torch
        import torch.distributed

        torch.distributed.init_process_group("gloo")
    meet()
    if FAILS:
        fail()
    if WAY != "fine":
        meet()  # never comes back: its peer does not come
    print(f"process {NUMBER} of {COUNT} is done", flush=True)


def meet() -> None:
    """Wait for the others in a collective."""
    if JOIN == "torch":
        import torch.distributed

        torch.distributed.barrier()
    elif JOIN == "none":
        time.sleep(0 if FAILS else 600)
    else:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(JOIN)


if __name__ == "__main__":
    main()
