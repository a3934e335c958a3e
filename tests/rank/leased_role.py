"""A role without torch, for the tests of leases: `python leased_role.py PIPE_FD HOW`, with HOW it spends its time."""

import socket
import sys
import time

from libra.rank.pipe import SupervisorPipe

pipe = SupervisorPipe(socket.socket(fileno=int(sys.argv[1])))
pipe.order()
pipe.lease.arm()
print("armed", flush=True)
if sys.argv[2] == "hold":
    sum(range(10**15))  # keeps the interpreter to itself for good
while True:
    time.sleep(0.05)
