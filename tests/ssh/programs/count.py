"""Prints its number and a count, a line every so often: count.py LINES SECONDS-BETWEEN."""

import os
import sys
import time

for i in range(int(sys.argv[1])):
    print(os.environ["PODRUN_PROCESS_ID"], i, flush=True)
    time.sleep(float(sys.argv[2]))
