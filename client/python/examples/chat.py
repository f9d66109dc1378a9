#!/usr/bin/env python3
"""A conversation that outlives its cache. Each argument is a turn."""
import os
import sys

import ebb

turns = sys.argv[1:] or ["The lamp is in the cellar. Where is the lamp?"]
try:
    with ebb.Client(os.environ.get("EBB_ADDR", "127.0.0.1:7700")) as client, \
            client.create_session(ebb.policy("h2o", budget=256)) as session:
        for turn in turns:
            print(">", turn)
            answer = session.generate([ebb.user(turn)], temperature=0, max_tokens=48)
            for text in answer:
                print(text, end="", flush=True)
            if answer.usage:  # at the end
                print(f"\n[cache {answer.usage.cache_length} of {answer.usage.session_tokens} tokens seen]")
except ebb.Error as error:
    sys.exit(f"chat.py: {error}")
