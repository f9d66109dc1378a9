"""How long tests wait for what a server does by itself."""
import time

import grpc

PATIENCE = 120  # seconds; nothing here should take more than a few, on a machine that has nothing else to do


def connected(channel):
    """A gRPC channel, when it has found its server. The first try of a connection to one that listens fails now and then (gRPC 1.51 reports ENOENT), and
    a call that does not wait for a connection with it."""
    grpc.channel_ready_future(channel).result(timeout=PATIENCE)
    return channel


def eventually(happens, what, patience=PATIENCE):
    """Returns the first true answer of `happens`; fails with `what`, a string or something that returns one."""
    end = time.monotonic() + patience
    while True:
        if answer := happens():
            return answer
        if time.monotonic() > end:
            raise AssertionError(what if isinstance(what, str) else what())
        time.sleep(0.1)
