"""`podrun watch`: serve the page of a run, live, to browsers on this machine."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

from podrun.runtime.contract import ExitCode, UserError

from ..rundir.runs import find_run
from ..watch.redirect_page import open_page, redirect_page
from ..watch.server import ADDRESS, WatchServer
from .stop import stop


def watch(name: str | None, port: int, *, open_browser: bool) -> int:
    """Serve until Ctrl-C. Raises UserError if there is no such run, or the port is not available."""
    run = find_run(name).run_id
    try:
        server = WatchServer(port, lambda run: stop(run, now=False))
    except OSError as error:
        raise UserError(
            f"cannot listen on {ADDRESS}:{port}: {error.strerror}; give another --port, or none for one that is free"
        ) from None
    address = f"{server.url}run/{run}"
    print(f"podrun: {run} is shown at\n  {address}\nall runs\n  {server.url}")
    print(f"from another machine\n  ssh -L {server.port}:{ADDRESS}:{server.port} {socket.gethostname()}")
    print("and the same address there; Ctrl-C ends this page, not the run", flush=True)
    with contextlib.closing(server.socket), contextlib.ExitStack() as stack:
        if open_browser:
            _open(stack, address)
        server.serve_forever()
    return ExitCode.DONE


def _open(stack: contextlib.ExitStack, address: str) -> None:
    """Open a browser by a temporary page, which is removed when `stack` ends."""
    try:
        page = stack.enter_context(redirect_page(address))
    except OSError as error:
        print(f"podrun: no browser is opened: cannot write {error.filename}: {error.strerror}", flush=True)
        return
    threading.Thread(target=_open_page, args=(page,), daemon=True).start()


def _open_page(page: Path) -> None:
    if not open_page(page):
        print("podrun: there is no browser that could be opened here", flush=True)
