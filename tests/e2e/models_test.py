#!/usr/bin/env python3
"""The command line and the Python package against a server of several models: what they tell of them, and how one is named."""
import asyncio
import json
import pathlib
import tempfile
import unittest

from binaries import MODEL, Server
from patience import eventually
import python_package  # noqa: F401, where ebb comes from

import ebb


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


class Models(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        config = cls.folder / "ebb.yaml"
        config.write_text("model: {name: main}\n"
                          "models:\n"
                          f"  other: {{path: {MODEL}, arena: 16MiB, threads: 1}}\n"
                          f"  none: {{path: {cls.folder}/none.gguf}}\n")
        cls.server = cls.enterClassContext(Server(f"--config={config}"))
        eventually(lambda: [each["state"] for each in cls.listed()] == [f"MODEL_STATE_{state}" for state in ("SERVING", "FAILED", "SERVING")],
                   "main, none and other do not come to what they are to be")

    @classmethod
    def listed(cls):
        return lines(cls.server.ebb("models", "--json"))

    def ebb(self, *args, **options):
        return self.server.ebb(*args, **options)

    def refused(self, *args, check=1):
        self.ebb(*args, "--json", check=check)
        return json.loads(self.server.stderr)["error"]

    def work_of_main(self):
        work = self.listed()[0]["work"]
        return {key: value for key, value in work.items() if key != "resident_bytes"}

    def test_each_has_a_line_with_its_state_and_what_it_holds(self):
        self.ebb("sessions", "create", "s", "--model=other", "--policy=streaming", "--budget=96")
        head, main, none, other = self.ebb("models").splitlines()
        self.assertRegex(head, "^MODEL +STATE +SESSIONS +RUNNING +QUEUED +PAGES +WEIGHTS +ARCHITECTURE$")
        self.assertRegex(main, r"^main +serving +0 +0 +0  0/\d+ +[\d.]+ MiB  llama$")
        self.assertRegex(none, rf"^none +failed +.*{self.folder}/none\.gguf")
        self.assertRegex(other, r"^other +serving +1 +0 +0  [1-9]\d*/\d+ +[\d.]+ MiB  llama$")
        self.assertEqual(main.index("llama"), head.index("ARCHITECTURE"))
        self.assertEqual(self.ebb("health", "models/other"), "SERVING\n")
        self.ebb("sessions", "delete", "s")

    def test_what_names_a_model_is_done_by_it(self):
        before = self.work_of_main()
        self.assertEqual(json.loads(self.ebb("sessions", "create", "s", "--model=other", "--json"))["model"], "other")
        self.ebb("generate", "--session=s", "It was a dark and stormy night", "--max-tokens=4")
        self.ebb("generate", "night", "--model=other", "--max-tokens=3")
        self.ebb("chat", "--model=other", "--max-tokens=3", stdin="Where?\n/reset\nWhere?\n/quit\n")
        text = self.folder / "night.txt"
        for night in ("It was a dark and stormy night.", "It was a bright night."):  # opened, and found again
            text.write_text(night)
            self.ebb("watch", str(text), "--model=other", "--session=w", "--count=1", "--policy=full", "--budget=96")
        self.ebb("save", "s", "kept")
        self.ebb("restore", "kept", "again", "--model=other")
        all_of = ("policy", "set", "--all", "--policy=streaming", "--budget=64", "--json")
        changed = {change["session"] for change in lines(self.ebb(*all_of, "--model=other"))}
        self.assertEqual(changed, {"sessions/s", "sessions/w", "sessions/again"})
        self.assertEqual(self.ebb(*all_of), "", "the first model has no sessions")
        self.assertEqual(self.work_of_main(), before)
        self.ebb("sessions", "delete", "s", "w", "again")

    def test_a_name_that_is_none_is_refused_wherever_it_is_given(self):
        text = self.folder / "any.txt"
        text.write_text("any")
        self.ebb("sessions", "create", "s")
        self.ebb("save", "s", "of-main")
        for command in (("generate", "night"), ("sessions", "create"), ("chat",), ("watch", str(text)), ("policy", "list"), ("evictions",),
                        ("restore", "of-main"), ("policy", "set", "--all", "--policy=h2o", "--budget=64")):
            with self.subTest(command):
                self.assertEqual(self.refused(*command, "--model=nobody")["reason"], "UNKNOWN_MODEL")
                self.assertEqual(self.refused(*command, "--model=none")["reason"], "MODEL_FAILED")
        for command in (("generate", "night", "--session=s"), ("chat", "--session=s"), ("evictions", "--session=s"), ("policy", "set", "s", "--policy=h2o"),
                        ("watch", str(text), "--session=s")):
            with self.subTest(command):
                self.assertEqual(self.refused(*command, "--model=other", check=2)["reason"], "USAGE")
        self.ebb("sessions", "delete", "s")

    def test_prompt_lookup_drafts_for_each(self):
        def told(*flags):
            answer = lines(self.ebb("generate", "one two three four " * 4, "--temperature=0", "--max-tokens=48", "--ignore-eos", "--json", *flags))
            decoded = [message["decode"] for message in answer if "decode" in message]
            return [token for message in decoded for token in message["tokens"]], decoded[-1]["usage"]

        for model in ("main", "other"):
            with self.subTest(model):
                tokens, plain = told(f"--model={model}")
                same, drafted = told(f"--model={model}", "--ngram")
                self.assertEqual(same, tokens)
                self.assertEqual(plain["drafted_tokens"], 0)
                self.assertGreater(drafted["accepted_draft_tokens"], 0)

    def test_python_names_models(self):
        before = self.work_of_main()
        with ebb.Client(self.server.addr) as client:
            self.assertEqual([model.name for model in client.models()], ["main", "none", "other"])
            with client.create_session(model="other") as session:
                self.assertEqual(session.info().model, "other")
                session.prefill("It was a dark and stormy night")
                self.assertEqual([change.session for change in client.set_policy_of_all(ebb.policy("streaming", budget=64), dry_run=True, model="other")], [session.name])
                session.save("of-other")
            with client.restore("of-other", model="other") as restored:
                self.assertEqual(restored.info().model, "other")
            ids = client.tokenize("night", model="other")
            self.assertIn("night", client.detokenize(ids, model="other"))
            self.assertGreater(len(client.score("night", model="other").tokens), 0)
            answer = client.generate("night", model="other", max_tokens=3, ignore_eos=True)
            answer.read()
            self.assertEqual(len(answer.tokens), 3)
            self.assertIn("h2o", [scorer.name for scorer in client.policies(model="other").scorers])
            for call in (lambda: client.tokenize("x", model="nobody"), lambda: client.detokenize([1], model="nobody"),
                         lambda: client.score("x", model="nobody"), lambda: client.generate("x", model="nobody").read(),
                         lambda: client.policies(model="nobody"), lambda: client.restore("of-other", model="nobody"),
                         lambda: client.set_policy_of_all("h2o", model="nobody"), lambda: next(client.watch_evictions(model="nobody"))):
                with self.assertRaises(ebb.NotFound) as caught:
                    call()
                self.assertEqual(caught.exception.reason, "UNKNOWN_MODEL")
            client.delete_snapshot("of-other")
        self.assertEqual(self.work_of_main(), before)

    def test_asyncio_names_models(self):
        async def use():
            async with ebb.aio.Client(self.server.addr) as client:
                self.assertEqual([model.name for model in await client.models()], ["main", "none", "other"])
                ids = await client.tokenize("night", model="other")
                self.assertIn("night", await client.detokenize(ids, model="other"))
                self.assertGreater(len((await client.score("night", model="other")).tokens), 0)
                await client.generate("night", model="other", max_tokens=3).read()
                for call in (client.policies(model="nobody"), client.restore("x", model="nobody"), client.generate("x", model="nobody").read(),
                             client.set_policy_of_all("h2o", model="nobody")):
                    with self.assertRaises(ebb.NotFound) as caught:
                        await call
                    self.assertEqual(caught.exception.reason, "UNKNOWN_MODEL")

        before = self.work_of_main()
        asyncio.run(use())
        self.assertEqual(self.work_of_main(), before)


if __name__ == "__main__":
    unittest.main(verbosity=2)
