"""Prints its number and a count, ten lines a second, until the file is there or for ten minutes: count.py FILE."""

import os
import sys
import time

for i in range(6000):
    print(os.environ["PODRUN_PROCESS_ID"], i, flush=True)
    time.sleep(0.1)
    if os.path.exists(sys.argv[1]):
        print(os.environ["PODRUN_PROCESS_ID"], "made", i + 1)
        break
