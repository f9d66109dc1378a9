#!/usr/bin/env python3
"""A drafter of our own: guesses what the text has said before, and lets Ebb check the guess in one step."""
import os
import sys

import ebb

TEXT = sys.argv[1] if sys.argv[1:] else "one two three four one two three four one two three"
COUNT = 48


def guess(tokens: list[int], most: int = 12) -> list[int]:
    """What followed the last three tokens, or two, or one, when they were last seen."""
    for size in (3, 2, 1):
        for at in range(len(tokens) - size - 1, -1, -1):
            if tokens[at : at + size] == tokens[-size:]:
                return tokens[at + size : at + size + most]
    return []


try:
    with ebb.Client(os.environ.get("EBB_ADDR", "127.0.0.1:7700")) as client, client.create_session() as session:
        tokens = client.tokenize(TEXT)
        session.prefill(TEXT)
        sure: list[int] = []  # the model's next token, which the session has not run yet
        begin, rounds = len(tokens), 0
        while len(tokens) - begin < COUNT:
            draft = (sure + guess(tokens + sure))[: COUNT - (len(tokens) - begin)] or tokens[-1:]
            seen = session.verify(draft, mode="manual", logprobs=1)
            best = [score.top[0].token for score in seen.scores] + [seen.next.token]
            right = next((i for i, (token, said) in enumerate(zip(draft, best)) if token != said), len(seen.scores))
            session.accept(right)
            tokens, sure, rounds = tokens + draft[:right], [best[right]], rounds + 1
        print(client.detokenize(tokens[begin:]))
        print(f"[{COUNT} tokens in {rounds} rounds]")
except ebb.Error as error:
    sys.exit(f"draft.py: {error}")
