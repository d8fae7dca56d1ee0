"""Runs commands as somebody who may not do everything, also where the tests are run by root."""

from __future__ import annotations

import os

# The user stays, and with it what belongs to it; root's right to pass over permissions goes.
_DROP = "-dac_override,-dac_read_search"
POWERLESS = ["setpriv", f"--bounding-set={_DROP}", f"--inh-caps={_DROP}"] if os.geteuid() == 0 else []
