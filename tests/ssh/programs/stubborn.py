"""Ignores every polite signal, and leaves children in sessions of their own, one of them daemonised."""

import os
import signal
import time

for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:  # a child in its own session
    os.setsid()
    time.sleep(600)
between = os.fork()
if between == 0:  # a daemon: its parent is gone
    os.setsid()
    if os.fork():
        os._exit(0)
    time.sleep(600)
os.waitpid(between, 0)
print("ready", flush=True)
time.sleep(600)
