"""How long tests wait for what a server does by itself."""
import time

PATIENCE = 120  # seconds; nothing here should take more than a few, on a machine that has nothing else to do


def eventually(happens, what, patience=PATIENCE):
    """Returns the first true answer of `happens`; fails with `what`, a string or something that returns one."""
    end = time.monotonic() + patience
    while True:
        if answer := happens():
            return answer
        if time.monotonic() > end:
            raise AssertionError(what if isinstance(what, str) else what())
        time.sleep(0.1)
