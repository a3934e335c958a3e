"""A role without torch, for the tests of leases: `python leased_role.py PIPE_FD HOW`, with HOW it spends its time."""

import signal
import socket
import sys
import time

from libra.rank.pipe import SupervisorPipe

SOON_S = 30.0
"""A lease that ends sooner is the short one that a test has sent."""

pipe = SupervisorPipe(socket.socket(fileno=int(sys.argv[1])))
pipe.order()
pipe.lease.arm()
print("armed", flush=True)
if sys.argv[2] == "hold":
    sum(range(10**15))  # keeps the interpreter to itself for good
told = False
while True:
    if not told and signal.getitimer(signal.ITIMER_REAL)[0] < SOON_S:
        print("counting", flush=True)
        told = True
    time.sleep(0.05)
