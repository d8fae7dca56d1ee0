"""A plain JAX program: it knows podrun's environment variables and nothing else of podrun."""

import os
import sys

import jax
import numpy as np
from jax.experimental import multihost_utils

jax.distributed.initialize(
    os.environ["PODRUN_COORDINATOR"], int(os.environ["PODRUN_NUM_PROCESSES"]), int(os.environ["PODRUN_PROCESS_ID"])
)
ids = multihost_utils.process_allgather(np.array([jax.process_index()]))
print("ids", np.sort(ids.ravel()).tolist(), "devices", jax.device_count(), jax.local_device_count())
print("args", sys.argv[1:])
