"""The table of pre-tokenizers: what each value of ``tokenizer.ggml.pre`` says of a byte-level BPE.

GGUF files name the rule by which their tokenizer splits text into words and hold no rule. A row has
the expressions of the model's own tokenizer where they are known. llama.cpp runs some of them in a
simpler form (letters of all cases alike, white space of ASCII alone), so its tokens differ where a
text tells the forms apart, and it never composes characters (NFC).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ptir.errors import CheckpointError, unknown_name


class PreTokenizer(NamedTuple):
    """One row: which ``names`` it has, and how words are found.

    ``splits`` are expressions, applied one after another: what one matches, and what lies between
    its matches, is split further by the next. ``ignore_merges`` takes a word that is a token whole,
    ``composes`` brings text into Unicode's form NFC first. ``byte_level`` vocabularies spell bytes
    as visible characters, the others hold text with ``▁`` for a space. ``adds_bos`` and
    ``adds_sep`` hold where the file does not say.
    """

    names: tuple[str, ...]
    splits: tuple[str, ...]
    ignore_merges: bool = False
    composes: bool = False
    byte_level: bool = True
    adds_bos: bool = False
    adds_sep: bool = False


_SUFFIX: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SPACE: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SIGNS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORD: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3: Final = rf"{_SUFFIX}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACE}"
_QWEN2: Final = rf"{_SUFFIX}|{_WORD}|\p{{N}}|{_SIGNS}|{_SPACE}"
_QWEN35: Final = (
    rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACE}"
)

# Words that begin with capitals and go on in small letters, as gpt-4o has them.
_CAPITALS: Final = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_SMALL: Final = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _cased(end: str, without: str = "") -> str:
    upper, lower = f"[{_CAPITALS}{without}]", f"[{_SMALL}{without}]"
    first = r"[^\r\n\p{L}\p{N}]?"
    return f"{first}{upper}*{lower}+{end}|{first}{upper}+{lower}*{end}"


_O200K: Final = rf"{_cased(_SUFFIX + '?')}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}"
_TEKKEN: Final = rf"{_cased('')}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}"
_YOUTU: Final = rf"{_cased(_SUFFIX + '?')}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}"
_NOT_HAN: Final = r"&&[^\p{Han}]"
_KIMI: Final = rf"\p{{Han}}+|{_cased(_SUFFIX + '?', _NOT_HAN)}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACE}"

_ASCII_SIGN: Final = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_DEEPSEEK_WORD: Final = (
    rf"{_ASCII_SIGN}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    r"| ?[\p{P}\p{S}]+"
)
_DEEPSEEK: Final = rf"{_DEEPSEEK_WORD}[\r\n]*|{_SPACE}"
_CJK: Final = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_CJK_WIDE: Final = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_CASED_LETTERS: Final = (
    "A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba"
    "\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"
    "\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
    "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134"
    "\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee"
    "\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_BLOOM: Final = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_LINES: Final = r"[^\n]+|\n+"
_FROM_THE_RIGHT: Final = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"

ROWS: Final = (
    PreTokenizer(
        ("default",), (r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")
    ),
    PreTokenizer(
        ("gpt-2", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "gigachat", "a.x-4.0",
         "mellum", "modern-bert", "exaone4", "jais", "trillion", "granite-docling"),
        (GPT2,),
    ),
    PreTokenizer(("mpt", "olmo"), (GPT2,), composes=True),
    PreTokenizer(("jina-v1-en", "jina-v2-code", "roberta-bpe"), (GPT2,), adds_sep=True),
    PreTokenizer(
        ("starcoder", "refact", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"),
        (r"\p{N}", GPT2),
    ),
    PreTokenizer(("command-r",), (r"\p{N}", GPT2), composes=True),
    PreTokenizer(("falcon",), (r"[\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]")),
    PreTokenizer(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
         "jina-v5-nano"),
        (_LLAMA3,), ignore_merges=True, adds_bos=True,
    ),
    PreTokenizer(("dbrx", "smaug-bpe", "chatglm-bpe"), (_LLAMA3,)),
    PreTokenizer(("glm4", "glm5"), (_LLAMA3,), ignore_merges=True),
    PreTokenizer(
        ("jais-2",),
        (rf"{_SUFFIX}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|\s*[\r\n]+|"
         + "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
         + r"|\s",),
    ),
    PreTokenizer(
        ("minicpm5",),
        (r"\p{N}{1,3}", rf"{_SUFFIX}|{_WORD}|\p{{N}}+|{_SIGNS}|{_SPACE}"), ignore_merges=True,
    ),
    PreTokenizer(("qwen2",), (_QWEN2,), composes=True),
    PreTokenizer(
        ("deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open",
         "grok-2"),
        (_QWEN2,),
    ),
    PreTokenizer(("qwen35",), (_QWEN35,), composes=True),
    PreTokenizer(("ufakzeka",), (rf"{_WORD}|\p{{N}}|{_SIGNS}|{_SPACE}",)),
    PreTokenizer(("laguna",), (_LINES, _QWEN2)),
    PreTokenizer(
        ("seed-coder",),
        (rf"{_SUFFIX}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACE}",),
    ),
    PreTokenizer(
        ("bailingmoe", "bailingmoe2", "llada-moe"),
        (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
         r"|\s*[\r\n]|\s+(?!\S)|\s+",),
    ),
    PreTokenizer(
        ("exaone-moe",),
        (rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",),
    ),
    PreTokenizer(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), (_O200K,)),
    PreTokenizer(("granite-embed-multi-97m",), (_O200K,), ignore_merges=True),
    PreTokenizer(("tiny_aya", "cohere2moe"), (r"\d{1,3}(?=(?:\d{3})*\b)", _O200K)),
    PreTokenizer(("tekken",), (_TEKKEN,), ignore_merges=True, adds_bos=True),
    PreTokenizer(
        ("youtu",),
        ("[\uac00-\ud7a3\u3131-\u318e]+"
         "|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
         f"|[\u3105-\u312f]+|{_CJK}", _YOUTU),
        ignore_merges=True,
    ),
    PreTokenizer(("kimi-k2",), (_KIMI,)),
    PreTokenizer(
        ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), (r"\p{N}{1,3}", _CJK, _DEEPSEEK)
    ),
    PreTokenizer(
        ("spark2_5",),
        (r"\p{N}{1,3}", _CJK, rf"{_DEEPSEEK_WORD}|[\r\n]|\s+(?!\S)|\s+", r"\p{N}"),
    ),
    PreTokenizer(
        ("deepseek-llm",),
        (r"[\r\n]", rf"\s?[{_CASED_LETTERS}]+",
         "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$",
         _CJK_WIDE, r"\p{N}+"),
    ),
    PreTokenizer(
        ("deepseek-coder",), (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_WIDE, r"\p{N}")
    ),
    PreTokenizer(
        ("afmoe",),
        (_FROM_THE_RIGHT,
         "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
         "\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af"
         "\u1100-\u11ff]+",
         _DEEPSEEK),
    ),
    PreTokenizer(("bloom", "poro-chat", "gpt3-finnish"), (_BLOOM,)),
    PreTokenizer(("viking",), (_BLOOM, r"\p{N}")),
    PreTokenizer(("superbpe",), (r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    PreTokenizer(
        ("chameleon",),
        ("<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}",
         r"[\p{P}!-/:-@\[-`{-~]", GPT2),
        adds_bos=True,
    ),
    PreTokenizer(("gemma4", "granite-embed-multi-311m"), (), byte_level=False, adds_bos=True),
    PreTokenizer(("sarvam-moe",), (), byte_level=False),
)  # fmt: skip
"""Every rule, with the names that files give it."""

BY_NAME: Final = {name: row for row in ROWS for name in row.names}
"""The row of each name."""


def pre_tokenizer(name: str) -> PreTokenizer:
    """The row of ``name``; raises ``CheckpointError`` for one that is not in the table."""
    if name not in BY_NAME:
        raise CheckpointError(
            f"tokenizer.ggml.pre: {unknown_name('pre-tokenizer', name[:80], BY_NAME)}; there is no"
            " rule to split text by, and any other would give wrong tokens: take a file of another"
            " conversion, or the model's own tokenizer.json"
        )
    return BY_NAME[name]
