"""A program `gcloud`: let gcloud_service.py answer, with the stdout and stderr of this process. It imports next to nothing.

`python gcloud_client.py SOCKET FOLDER ARGUMENTS ...`
"""

import _signal
import _socket
import sys

path, *words = sys.argv[1:]
service = _socket.socket(_socket.AF_UNIX)
service.connect(path)
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (1, 2))  # as C's int
service.sendmsg(["\0".join(words).encode()], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
code = int(service.recv(64))
if code < 0:  # Google has done it, but this gcloud never ends
    _signal.pause()
sys.exit(code)
