"""Prints its arguments and what is in SHOW, exactly."""

import json
import os
import sys

print(json.dumps({"args": sys.argv[1:], "env": {n: os.environ.get(n) for n in os.environ["SHOW"].split(",")}}))
