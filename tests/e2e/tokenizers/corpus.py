"""Lines to tokenize, of the kinds that tokenizers get wrong: the same bytes every time for the same seed."""
import random
import struct
import unicodedata

ENGLISH = """the of and to in a is that it was for on are as with his they at be this from have or by one had not but what
all were when we there can an your which their said if do will each about how up out them then she many some so these would
other into has more her two like him see time could no make than first been its who now people my made over did down only way
find use may water long little very after words called just where most know""".split()
CONTRACTIONS = ["don't", "I'll", "we're", "THEY'VE", "it's", "o'clock", "'tis", "I'm", "she'd", "Y'ALL", "can\u2019t", "'s", "'ſ"]
CODE = ["for (int i = 0; i < {n}; ++i) {{", "\treturn x->y[{n}] != nullptr;", "def f_{n}(self, *args, **kw):", "    if a==b: pass  # {n}",
        "x = {{'k': [{n}, 0x{n:x}, 1e-{n}]}}", "<div class=\"c{n}\">&nbsp;</div>", "SELECT * FROM t WHERE id={n};", "}}", "\t\t}}\r",
        "#include <v{n}.h>", "a\\nb\\t\\\"{n}\\\"", "https://example.org/p?q={n}&r=%20", "$ ./run --n={n} | grep -E '^[a-z]+$'"]
MARKS = ".,;:!?-—()[]{}\"'`~@#$%^&*_+=|\\/<>…。，、！？「」（）·•€£¥«»¿¡"
SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n ", "\u00a0", "\u3000", "\u2028", "\u2003", "\u0085", "\v", "\f", "\u200b", "\u180e", "\ufeff"]
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🇩🇪", "🏳️‍🌈", "❤️", "☕", "✨", "1️⃣", "🧑🏿‍🚀", "Ⓐ", "🄰", "⅓", "²", "№", "㍿", "Ǆ", "ﬁ", "İ", "ß", "ſ", "K"]
RANGES = {"chinese": [(0x4E00, 0x9FA5), (0x3400, 0x3500)], "arabic": [(0x620, 0x65F), (0x660, 0x6D5)], "japanese": [(0x3041, 0x30FF)],
          "korean": [(0xAC00, 0xD7A3), (0x1100, 0x11FF)], "cyrillic": [(0x400, 0x4FF)], "greek": [(0x386, 0x3CE)], "latin": [(0xC0, 0x24F)],
          "devanagari": [(0x904, 0x97F)], "thai": [(0xE01, 0xE5B)], "hebrew": [(0x5B0, 0x5EA)], "marks": [(0x300, 0x36F)],
          "symbols": [(0x2000, 0x2BFF)], "wide": [(0xFF01, 0xFFEE)], "any": [(0x20, 0xD7FF), (0xE000, 0x1FFFF)], "control": [(0, 0x1F), (0x7F, 0x9F)]}


class Lines:
    def __init__(self, seed, names, old):
        """`names`: of tokens that are looked for by name. `old`: characters that Unicode has had since 3.2 alone."""
        self.random = random.Random(seed)
        self.names = names
        self.category = unicodedata.ucd_3_2_0.category if old else unicodedata.category

    def pick(self, of):
        return of[int(self.random.random() * len(of))]

    def number(self, below):
        return int(self.random.random() * below)

    def character(self, kind):
        while True:
            low, high = self.pick(RANGES[kind])
            c = chr(low + self.number(high - low + 1))
            if self.category(c) not in ("Cn", "Cs", "Co"):  # what Unicode gives a meaning one day is no one's now
                return c

    def script(self, kind):
        words = ("".join(self.character(kind) for _ in range(1 + self.number(7))) for _ in range(1 + self.number(6)))
        return self.pick(["", " ", " ", "، ", "。"]).join(words)

    def english(self):
        words = []
        for _ in range(1 + self.number(12)):
            word = self.pick(CONTRACTIONS) if self.number(9) == 0 else self.pick(ENGLISH)
            words.append(self.pick([word, word, word, word.capitalize(), word.upper(), word + self.pick(MARKS)]))
        return " ".join(words)

    def digits(self):
        return self.pick(["{}", " {}", "{}.", "-{}", "{}%", "+{} "]).format("".join(self.pick("0123456789") for _ in range(1 + self.number(9))))

    def piece(self):
        kinds = [self.english, self.english, lambda: self.pick(CODE).format(n=self.number(5000)), lambda: self.pick(EMOJI) * (1 + self.number(2)),
                 self.digits, lambda: self.pick(MARKS) * (1 + self.number(4)), lambda: self.pick(SPACES) * (1 + self.number(3)),
                 lambda: self.script(self.pick(list(RANGES))), lambda: self.script(self.pick(["chinese", "arabic"])),
                 lambda: "e" + self.character("marks") + self.character("marks")]
        if self.names:
            kinds.append(lambda: self.pick(self.names))
        return self.pick(kinds)()

    def line(self):
        text = "".join(self.pick(["", " ", "", "  "]) + self.piece() for _ in range(1 + self.number(4)))
        return text.encode()

    def broken(self):
        """Not UTF-8: a line that was cut, or has bytes in it that no character has."""
        line = bytearray(self.line() + "é中😀".encode())
        for _ in range(1 + self.number(3)):
            at = self.number(len(line))
            line[at:at + self.number(3)] = bytes([self.pick([0x80, 0xBF, 0xC0, 0xC3, 0xE2, 0xED, 0xF0, 0xF5, 0xFF, self.number(256)])])
        return bytes(line)


def lines(count, seed, names=(), old=False):
    """`count` lines, each tenth of them not UTF-8."""
    source = Lines(seed, names, old)
    return [source.broken() if i % 10 == 9 else source.line() for i in range(count)]


def packed(texts):
    """What tokenize_lines and reference.mjs read: of each its length in 4 bytes, then it."""
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)
