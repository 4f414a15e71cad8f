"""Lines that tokenizers stumble over, the same for the same seed."""

from __future__ import annotations

import random
from typing import Final

WORDS: Final = (
    "the", "Hello", "WORLD", "iPhone", "don't", "WE'RE", "'tis", "it'ſ", "I'VE'd", "naïve",
    "re\u0301sume\u0301", "Việt", "Vie\u0323\u0302t", "straße", "ﬁne", "ǅabc", "ʰʷ", "Ωmega",
    "привет", "ёлка", "Ελλάδα", "עברית", "العربية", "فارسی\u200cها", "हिन\u094dदी", "ภาษาไทย",
    "កម\u17d2ព\u17bbជា", "မြန\u103aမာ", "தமிழ\u0bcd",
    "中文测试", "東京タワー", "ﾃｽﾄ", "한국어", "𠀋𠮷", "ᏣᎳᎩ",
    "𝔘𝔫𝔦", "ⅷ", "x86_64", "snake_case", "camelCaseWord", "http://a.b/c?d=e&f",
    "C:\\dir\\file.txt", "</p>", "<b>", "{%if%}", "def f(x):", "print(\"x\")", "e\u0301\u0323",
    "\u0301", "Å",
)  # fmt: skip
SIGNS: Final = (
    "🚀", "👩\u200d👩\u200d👧\u200d👦", "🏳\ufe0f\u200d🌈", "🇩🇪🇫🇷", "👍🏽", "☃", "½", "²³",
    "٣٤٥", "१२३",
    "⑫", "１２３", "Ⅻ", "0", "7", "42", "123", "1234", "1234567", "3.14159", "1,000,000", "0x1F",
    "2026-11-25", "-", "--", "---", "===", "!!", "?!", "...", "…", "。", "、", "「」", "《》", "¿¡",
    "«»", "“”‘’", "#", "##", "###x", "@", "&", "$1", "€", "~", "`", "```", "|", "^", "*", "**",
    "_", "__", "\\", "/", "//", "(", ")", "[", "]", "{", "}", "<", ">", "<<", "+", "%", ";", ":",
    "'", "\"", "''", "�", "\ufeff", "\u200b", "\xad", "\x00", "\x07", "\x7f", "\u2028", "▁",
    "▁▁x", "<0x41>", "<0x0A>", "\ue000", "\U0010ffff",
)  # fmt: skip
SPACES: Final = (
    " ", " ", " ", " ", "  ", "   ", "    ", "\t", "\t\t", "\n", "\n\n", "\n\n\n", "\r\n", "\r",
    " \n", "\n ", "\n  ", " \t ", "\xa0", "\u2003", "\u3000", "\x85", "\x0b", "\x0c", "\u2009 ",
    "",
)  # fmt: skip
ANY: Final = [*range(1, 0xD800), *range(0xE000, 0x11000), *range(0x1D400, 0x20000)]


def awkward_lines(count: int, seed: int, *special: str) -> list[str]:
    """``count`` lines of scripts, emoji, runs of white space and of anything, and ``special``."""
    rng = random.Random(seed)
    kinds = [WORDS, SIGNS, SPACES, SPACES, special or SIGNS]
    return [_line(rng, kinds) for _ in range(count)]


def _line(rng: random.Random, kinds: list[tuple[str, ...]]) -> str:
    parts = [_part(rng, kinds) for _ in range(rng.choice((1, 2, 4, 8, 16)))]
    return "".join(parts) if rng.random() < 0.98 else " ".join(parts * 40)


def _part(rng: random.Random, kinds: list[tuple[str, ...]]) -> str:
    if rng.random() < 0.08:
        return "".join(map(chr, rng.choices(ANY, k=rng.randrange(1, 5))))
    part = rng.choice(rng.choice(kinds))
    return part * rng.choice((2, 3, 9, 21, 60)) if rng.random() < 0.06 else part
