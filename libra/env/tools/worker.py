"""The program of a tool worker: one call at a time, from a pipe, until the pipe ends. Never imported by anybody.

Started by `process.py` as `python -I -S worker.py PARENT_PID MEMORY_BYTES CHILD_FILE NAME=FILE ...`, so only the standard
library can be imported, and little of it is (a worker is up in about 25 ms). Each tool is a file with a function

    run(argument: str) -> tuple[bool, str]        # (did it succeed, its output)

An exception in it is a tool's error, too: the worker lives on. Frames (big-endian):

    request  = fault code (1 byte), length of name (1), length of argument (4), name, argument
    reply    = 1 ok / 0 error (1 byte), length of output (4), output          the first, empty, reply says "ready"
"""

import os
import resource
import signal
import struct
import sys
import time

REQUEST = struct.Struct(">BBI")
REPLY = struct.Struct(">BI")
FAULTS = ("none", "hang", "crash", "flood", "fail")
FLOOD_BYTES = 50_000_000
LOG_BYTES = 1 << 20
"""Largest file that a tool may write, its log (standard output and error) first of all."""


def main(arguments):
    parent, memory_bytes, child_file, *tool_files = arguments
    child = load(child_file)
    child.ignore_interrupt()
    child.die_with_parent(int(parent))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (LOG_BYTES, LOG_BYTES))
    resource.setrlimit(resource.RLIMIT_AS, (int(memory_bytes), int(memory_bytes)))
    tools = {}
    for pair in tool_files:
        name, file = pair.split("=", 1)
        tools[name] = load(file).run
    # Copies of the pipe's ends, closed in a tool's own children; what a tool prints goes to the log, not among the frames.
    requests, replies = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    serve(tools, requests, replies)


def load(file):
    """A module from its file, without import paths."""
    module = type(sys)(file)
    with open(file, encoding="utf-8") as source:  # noqa: PTH123 - pathlib would double the time to start
        exec(compile(source.read(), file, "exec"), module.__dict__)
    return module


def serve(tools, requests, replies):
    write(replies, REPLY.pack(1, 0))
    while True:
        head = read(requests, REQUEST.size)
        fault, name_length, argument_length = REQUEST.unpack(head)
        name = read(requests, name_length).decode()
        argument = read(requests, argument_length).decode()
        kind = FAULTS[fault]
        if kind == "hang":
            while True:
                time.sleep(3600)
        if kind == "crash":
            signal.signal(signal.SIGABRT, signal.SIG_DFL)
            os.abort()
        try:
            ok, output = (False, "failed on order") if kind == "fail" else tools[name](argument)
        except Exception as error:
            ok, output = False, f"{type(error).__name__}: {error}"
        body = output.encode()
        if kind == "flood":
            flood(replies, ok, body + b"\n")
        else:
            write(replies, REPLY.pack(ok, len(body)) + body)


def flood(replies, ok, body):
    """The true answer in the first line, then far too much."""
    write(replies, REPLY.pack(ok, len(body) + FLOOD_BYTES) + body)
    block = b"x" * 65_536
    left = FLOOD_BYTES
    while left:
        part = block[:left]
        write(replies, part)
        left -= len(part)


def read(fd, size):
    data = b""
    while len(data) < size:
        part = os.read(fd, size - len(data))
        if not part:
            sys.exit(0)  # the pool has closed the pipe, or is gone
        data += part
    return data


def write(fd, data):
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


if __name__ == "__main__":
    main(sys.argv[1:])
