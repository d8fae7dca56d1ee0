"""`podrun watch --open` tells the token to the browser alone."""

from __future__ import annotations

import re
import stat
import subprocess
import sys

from podrun.launcher.watch.redirect_page import redirect_page

from ...conftest import Sandbox
from ...hosts import wait_until

ADDRESS = "http://127.0.0.1:9/to-ken/run/r?a=1&b=2"


def test_only_the_user_can_read_the_page() -> None:
    with redirect_page(ADDRESS) as page:
        assert stat.S_IMODE(page.stat().st_mode) == 0o600
        assert stat.S_IMODE(page.parent.stat().st_mode) == 0o700
        text = page.read_text()
    assert 'url=http://127.0.0.1:9/to-ken/run/r?a=1&amp;b=2"' in text
    assert not page.parent.exists()


def test_the_command_line_has_no_token(sandbox: Sandbox) -> None:
    """A browser that notes its arguments gets the path of a page, which leads to the run and is gone with the command."""
    done = sandbox.podrun("--slice", "cpu-1x1", "--simulate", "--", "true")
    assert done.returncode == 0, done.stderr
    seen, page = sandbox.path / "seen", sandbox.path / "page"
    browser = sandbox.path / "browser"
    browser.write_text(
        f"#!{sys.executable}\nimport sys, urllib.request\n"
        f"open({str(page)!r}, 'wb').write(urllib.request.urlopen(sys.argv[1]).read())\n"
        f"open({str(seen)!r} + '.new', 'w').write(sys.argv[1])\n"
        f"import os\nos.rename({str(seen)!r} + '.new', {str(seen)!r})\n"
    )
    browser.chmod(0o755)
    env = {**sandbox.env, "BROWSER": f"{browser} %s"}
    command = [*sandbox.command, "watch", "--open"]
    watching = subprocess.Popen(command, cwd=sandbox.path, env=env, stdout=subprocess.PIPE, text=True)
    try:
        wait_until(seen.exists, "the browser is opened")
    finally:
        watching.terminate()
        shown = watching.communicate(timeout=60)[0]
    address = re.search(r"http://\S+/run/\S+", shown)
    assert address is not None, shown
    token = address[0].split("/")[3]
    assert seen.read_text().startswith("file:///") and token not in seen.read_text()
    assert address[0] in page.read_text()
