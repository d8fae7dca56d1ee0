"""Program that uses podrun's own helper."""

import jax

from podrun.runtime.distributed import initialize

me = initialize()
print("process", me.process_id, "of", me.num_processes, "devices", jax.device_count(), list(me.local_device_ids))
