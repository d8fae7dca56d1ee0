"""Be one host of a JobSet: what the manifests of `podrun render jobset` start in each container."""

from __future__ import annotations

import sys

from ..engines.kubernetes.member import main
from ..view.terminal import guarded_streams

if __name__ == "__main__":
    with guarded_streams():
        end = int(main())
    sys.exit(end)
