#!/usr/bin/env python3
"""ebbd serves a folder as model hubs lay it out: the same chats, token by token, as the GGUF file that is made of it; a damaged one is refused
by the name of the file that is wrong. Needs numpy, and Debian's python3-grpcio and protoc."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from binaries import BIN, MODEL, ROOT, Server
import python_package  # noqa: F401, where ebb comes from

sys.path.insert(0, str(ROOT / "tests" / "support"))
import ebb  # noqa: E402
import make_hub  # noqa: E402

CONTROL = 3  # of tokenizer.ggml.token_type


def write_json(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1))


def tokenizer_of(meta):
    tokens, types = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    special = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
               for i, (token, kind) in enumerate(zip(tokens, types)) if kind == CONTROL]
    bos = meta["tokenizer.ggml.bos_token_id"]
    steps = [{"SpecialToken": {"id": tokens[bos], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": {"type": "TemplateProcessing", "single": steps, "pair": steps,
                           "special_tokens": {tokens[bos]: {"id": tokens[bos], "ids": [bos], "tokens": [tokens[bos]]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": {token: i for i, token in enumerate(tokens)},
                  "merges": meta["tokenizer.ggml.merges"]},
    }


def write_folder(model, folder):
    """What a hub has of a chat model in a GGUF file with a byte-level tokenizer."""
    make_hub.write_hub(model, folder, shards=3)
    meta = make_hub.reference.read_gguf(model)[0]
    tokens, bos, eos = (meta[f"tokenizer.ggml.{key}"] for key in ("tokens", "bos_token_id", "eos_token_id"))
    ends = [eos, meta["tokenizer.ggml.eot_token_id"]]
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", {"architectures": ["LlamaForCausalLM"], **config, "eos_token_id": eos, "vocab_size": len(tokens),
                                        "torch_dtype": "float32"})
    write_json(folder / "generation_config.json", {"bos_token_id": bos, "eos_token_id": ends, "do_sample": True, "temperature": 0.6})
    write_json(folder / "tokenizer.json", tokenizer_of(meta))
    write_json(folder / "tokenizer_config.json", {"add_bos_token": True, "bos_token": tokens[bos], "eos_token": tokens[eos],
                                                  "chat_template": meta["tokenizer.chat_template"], "model_max_length": meta["llama.context_length"],
                                                  "tokenizer_class": "PreTrainedTokenizerFast"})


def cut(name, bytes_left):
    return lambda folder: replace(folder / name, (folder / name).read_bytes()[:bytes_left])


def replace(path, data):
    path.unlink()  # what lies elsewhere under another name stays as it is
    path.write_bytes(data)


def edit(name, change):
    """A damage: `change` alters what the JSON file `name` says."""
    def damage(folder):
        value = json.loads((folder / name).read_text())
        change(value)
        replace(folder / name, json.dumps(value).encode())
    return damage


LAST = "model-00003-of-00003.safetensors"
INDEX = "model.safetensors.index.json"
# (what is done to the folder, what ebbd says of it)
DAMAGES = {
    "a file of tensors is cut": (cut(LAST, 200_000), rf"{LAST}: .*expected .*, found "),
    "its header is cut": (cut(LAST, 100), rf"{LAST}: byte \d+: expected .*, found "),
    "a file of tensors is gone": (lambda folder: (folder / LAST).unlink(), rf"{LAST}: a file of the model's tensors is missing"),
    "the index is cut": (cut(INDEX, 500), rf"{INDEX}: byte \d+: "),
    "the index has a tensor more": (edit(INDEX, lambda it: it["weight_map"].update({"model.more": LAST})), rf"{LAST}: expected tensor model.more, found none"),
    "the index has a tensor less": (edit(INDEX, lambda it: it["weight_map"].pop("model.norm.weight")),
                                    rf"tensor model.norm.weight: expected no tensor that {INDEX} lacks, found it here"),
    "there is a layer less": (edit("config.json", lambda it: it.update(num_hidden_layers=5)),
                              "tensor model.layers.5.[a-z._]+ has no place in model_type llama with 5 layers"),
    "there is a layer more": (edit("config.json", lambda it: it.update(num_hidden_layers=7)), "expected tensor model.layers.6.[a-z._]+, found none"),
    "another family": (edit("config.json", lambda it: it.update(model_type="t5")), r"config.json: .*model_type.*t5"),
    "a width that is none": (edit("config.json", lambda it: it.update(hidden_size="256")), r"config.json: hidden_size: expected .*, found "),
    "config.json is gone": (lambda folder: (folder / "config.json").unlink(), "config.json: "),
    "an end that is none": (edit("generation_config.json", lambda it: it.update(eos_token_id="</s>")), "generation_config.json: eos_token_id: expected "),
    "the tokenizer is cut": (cut("tokenizer.json", 3000), r"tokenizer.json: byte \d+: "),
    "a step that is not known": (edit("tokenizer.json", lambda it: it.update(normalizer={"type": "BertNormalizer"})),
                                 "tokenizer.json: normalizer.type: \"BertNormalizer\" is not known"),
    "a merge of no tokens": (edit("tokenizer.json", lambda it: it["model"]["merges"].append("qq zz")), "Tiny-Chat: tokenizer.ggml.merges: expected tokens in merge 1787"),
    "the tokenizer is gone": (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer that is read lies in the folder"),
    "a template that is none": (edit("tokenizer_config.json", lambda it: it.update(chat_template=7)), "tokenizer_config.json: chat_template: expected a string"),
}


class HubFolder(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.folder, cls.file = cls.root / "Tiny-Chat", cls.root / "tiny.gguf"
        write_folder(MODEL, cls.folder)
        subprocess.run([BIN / "ebb-lab", "convert", cls.folder, "-o", cls.file, "--type", "f32"], check=True, capture_output=True, timeout=60)

    def copy(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(dir=self.root)), "Tiny-Chat")
        shutil.copytree(self.folder, folder, copy_function=os.link)
        return folder

    def chat(self, model):
        """Tokens, text, and why it ended, of a conversation past its budget, and of a chat that is sampled; then what that one's prompt was."""
        with Server(f"--model={model}") as server, ebb.Client(server.addr) as client:
            said = []
            with client.create_session(ebb.policy("h2o", budget=96)) as session:
                for turn in ("The passkey of Clara is 90557. What is the passkey of Clara?", "Once more: what is the passkey of Clara?"):
                    said.append(session.generate([ebb.user(turn)], temperature=0, max_tokens=64))
                    said[-1].read()
            prompt = [ebb.system("S"), ebb.user("Tell me of the lamp.")]
            said.append(client.generate(prompt, temperature=0.9, seed=7, max_tokens=64))
            said[-1].read()
            return [(one.tokens, one.text, one.finish_reason) for one in said], client.tokenize(prompt)

    def test_a_folder_is_chatted_with_as_the_file_that_is_made_of_it(self):
        names = {path.name for path in self.folder.iterdir()}
        self.assertLessEqual({"config.json", "generation_config.json", INDEX, LAST, "tokenizer.json", "tokenizer_config.json"}, names)
        of_folder = self.chat(self.folder)
        self.assertEqual(of_folder, self.chat(self.file))
        said, prompt = of_folder
        self.assertIn("90557", said[0][1], "weights, tokenizer and template are those of the model")
        self.assertEqual([reason for _, _, reason in said[:2]], ["END_OF_SEQUENCE"] * 2)

        tokens = said[2][0]
        texts = make_hub.reference.read_gguf(MODEL)[0]["tokenizer.ggml.tokens"]
        end = next(i for i in range(4, len(tokens)) if tokens[i] not in prompt + tokens[:i] and len(texts[tokens[i]]) > 1)  # no byte's
        folder = self.copy()
        edit("generation_config.json", lambda it: it["eos_token_id"].append(tokens[end]))(folder)
        self.assertEqual(self.chat(folder)[0][2][::2], (tokens[:end + 1], "END_OF_SEQUENCE"), "generation_config.json says what ends an answer")

    def test_what_is_damaged_is_refused_by_name(self):
        for name, (damage, said) in DAMAGES.items():
            with self.subTest(name):
                folder = self.copy()
                damage(folder)
                done = subprocess.run([BIN / "ebbd", f"--model={folder}", "--listen=127.0.0.1:0", "--server.http_listen=127.0.0.1:0", "--store.dir="],
                                      capture_output=True, text=True, timeout=60)
                self.assertNotEqual(done.returncode, 0)
                refusals = [line for line in done.stderr.splitlines() if line.startswith("ebbd: ")]
                self.assertEqual(len(refusals), 1, done.stderr)
                self.assertRegex(refusals[0], said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
