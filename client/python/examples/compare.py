#!/usr/bin/env python3
"""Two policies side by side: a text is read once, and two branches answer from it, each with a budget that it does not fit into."""
import os
import sys

import ebb

BUDGET = 64
NAMES = sys.argv[1:] or ["streaming", "keydiff"]
FILLER = "The frog jumped into the pond. The sun was still in the dark. The old man went to the house and sat down by the fire. "
TEXT = f"The passkey of Clara is 90557. {3 * FILLER}What is the passkey of Clara?"

try:
    with ebb.Client(os.environ.get("EBB_ADDR", "127.0.0.1:7700")) as client, \
            client.create_session(ebb.policy("full", budget=1024)) as whole:
        whole.prefill([ebb.user(TEXT)])
        for name in ["full", *NAMES]:
            with whole.fork(None if name == "full" else ebb.policy(name, budget=BUDGET)) as branch:
                kept = branch.info().cache_length
                print(f"{name}, {kept} tokens: {branch.decode(temperature=0, max_tokens=24).read()}")
except ebb.Error as error:
    sys.exit(f"compare.py: {error}")
