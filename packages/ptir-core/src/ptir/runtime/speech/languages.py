"""The languages that Whisper was trained with, in the order of their tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ptir.errors import UsageError, unknown_name

_PAIRS: Final = """
en:English zh:Chinese de:German es:Spanish ru:Russian ko:Korean fr:French ja:Japanese
pt:Portuguese tr:Turkish pl:Polish ca:Catalan nl:Dutch ar:Arabic sv:Swedish it:Italian
id:Indonesian hi:Hindi fi:Finnish vi:Vietnamese he:Hebrew uk:Ukrainian el:Greek ms:Malay
cs:Czech ro:Romanian da:Danish hu:Hungarian ta:Tamil no:Norwegian th:Thai ur:Urdu hr:Croatian
bg:Bulgarian lt:Lithuanian la:Latin mi:Maori ml:Malayalam cy:Welsh sk:Slovak te:Telugu
fa:Persian lv:Latvian bn:Bengali sr:Serbian az:Azerbaijani sl:Slovenian kn:Kannada et:Estonian
mk:Macedonian br:Breton eu:Basque is:Icelandic hy:Armenian ne:Nepali mn:Mongolian bs:Bosnian
kk:Kazakh sq:Albanian sw:Swahili gl:Galician mr:Marathi pa:Punjabi si:Sinhala km:Khmer sn:Shona
yo:Yoruba so:Somali af:Afrikaans oc:Occitan ka:Georgian be:Belarusian tg:Tajik sd:Sindhi
gu:Gujarati am:Amharic yi:Yiddish lo:Lao uz:Uzbek fo:Faroese ht:Haitian_Creole ps:Pashto
tk:Turkmen nn:Nynorsk mt:Maltese sa:Sanskrit lb:Luxembourgish my:Myanmar bo:Tibetan tl:Tagalog
mg:Malagasy as:Assamese tt:Tatar haw:Hawaiian ln:Lingala ha:Hausa ba:Bashkir jw:Javanese
su:Sundanese yue:Cantonese
"""
LANGUAGES: Final[dict[str, str]] = dict(pair.split(":") for pair in _PAIRS.split())
"""Codes, as tokens are spelled, and English names."""


def language_code(asked: str, known: Iterable[str]) -> str:
    """The code of ``known`` that a code, a token ``<|de|>`` or an English name asks for.

    Raises ``UsageError``.
    """
    codes = {*known}
    plain = asked.strip().lower().removeprefix("<|").removesuffix("|>")
    names = {name.lower().replace("_", " "): code for code, name in LANGUAGES.items()}
    found = names.get(plain, plain)
    if found not in codes:
        spelled = {*codes, *(name for name, code in names.items() if code in codes)}
        raise UsageError(unknown_name("language", asked, spelled))
    return found
