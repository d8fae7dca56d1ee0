"""JAX on CPU with four virtual devices. Set at import, because it counts only before JAX starts its backend."""

from __future__ import annotations

import os

from ..conftest import FAST

os.environ |= FAST
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "4"
os.environ["NPROC"] = "64"  # threads of XLA's CPU client: a collective holds one for each device
