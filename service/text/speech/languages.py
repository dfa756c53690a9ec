"""The languages of Whisper, by their codes, and the names under which they are requested and reported.

Source: https://github.com/openai/whisper/blob/main/whisper/tokenizer.py (LANGUAGES, TO_LANGUAGE_CODE)
"""

import re

LANGUAGES = {
    "en": "english",
    "zh": "chinese",
    "de": "german",
    "es": "spanish",
    "ru": "russian",
    "ko": "korean",
    "fr": "french",
    "ja": "japanese",
    "pt": "portuguese",
    "tr": "turkish",
    "pl": "polish",
    "ca": "catalan",
    "nl": "dutch",
    "ar": "arabic",
    "sv": "swedish",
    "it": "italian",
    "id": "indonesian",
    "hi": "hindi",
    "fi": "finnish",
    "vi": "vietnamese",
    "he": "hebrew",
    "uk": "ukrainian",
    "el": "greek",
    "ms": "malay",
    "cs": "czech",
    "ro": "romanian",
    "da": "danish",
    "hu": "hungarian",
    "ta": "tamil",
    "no": "norwegian",
    "th": "thai",
    "ur": "urdu",
    "hr": "croatian",
    "bg": "bulgarian",
    "lt": "lithuanian",
    "la": "latin",
    "mi": "maori",
    "ml": "malayalam",
    "cy": "welsh",
    "sk": "slovak",
    "te": "telugu",
    "fa": "persian",
    "lv": "latvian",
    "bn": "bengali",
    "sr": "serbian",
    "az": "azerbaijani",
    "sl": "slovenian",
    "kn": "kannada",
    "et": "estonian",
    "mk": "macedonian",
    "br": "breton",
    "eu": "basque",
    "is": "icelandic",
    "hy": "armenian",
    "ne": "nepali",
    "mn": "mongolian",
    "bs": "bosnian",
    "kk": "kazakh",
    "sq": "albanian",
    "sw": "swahili",
    "gl": "galician",
    "mr": "marathi",
    "pa": "punjabi",
    "si": "sinhala",
    "km": "khmer",
    "sn": "shona",
    "yo": "yoruba",
    "so": "somali",
    "af": "afrikaans",
    "oc": "occitan",
    "ka": "georgian",
    "be": "belarusian",
    "tg": "tajik",
    "sd": "sindhi",
    "gu": "gujarati",
    "am": "amharic",
    "yi": "yiddish",
    "lo": "lao",
    "uz": "uzbek",
    "fo": "faroese",
    "ht": "haitian creole",
    "ps": "pashto",
    "tk": "turkmen",
    "nn": "nynorsk",
    "mt": "maltese",
    "sa": "sanskrit",
    "lb": "luxembourgish",
    "my": "myanmar",
    "bo": "tibetan",
    "tl": "tagalog",
    "mg": "malagasy",
    "as": "assamese",
    "tt": "tatar",
    "haw": "hawaiian",
    "ln": "lingala",
    "ha": "hausa",
    "ba": "bashkir",
    "jw": "javanese",
    "su": "sundanese",
    "yue": "cantonese",
}
# Other names and codes of languages, and the codes that stand for them.
ALIASES = {
    "burmese": "my",
    "valencian": "ca",
    "flemish": "nl",
    "haitian": "ht",
    "letzeburgesch": "lb",
    "pushto": "ps",
    "panjabi": "pa",
    "moldavian": "ro",
    "moldovan": "ro",
    "sinhalese": "si",
    "castilian": "es",
    "mandarin": "zh",
}


# By their codes of three letters, in the order of `LANGUAGES`.
_ISO_639_3 = (
    *("eng", "zho", "deu", "spa", "rus", "kor", "fra", "jpn", "por", "tur"),
    *("pol", "cat", "nld", "ara", "swe", "ita", "ind", "hin", "fin", "vie"),
    *("heb", "ukr", "ell", "msa", "ces", "ron", "dan", "hun", "tam", "nor"),
    *("tha", "urd", "hrv", "bul", "lit", "lat", "mri", "mal", "cym", "slk"),
    *("tel", "fas", "lav", "ben", "srp", "aze", "slv", "kan", "est", "mkd"),
    *("bre", "eus", "isl", "hye", "nep", "mon", "bos", "kaz", "sqi", "swa"),
    *("glg", "mar", "pan", "sin", "khm", "sna", "yor", "som", "afr", "oci"),
    *("kat", "bel", "tgk", "snd", "guj", "amh", "yid", "lao", "uzb", "fao"),
    *("hat", "pus", "tuk", "nno", "mlt", "san", "ltz", "mya", "bod", "tgl"),
    *("mlg", "asm", "tat", "haw", "lin", "hau", "bak", "jav", "sun", "yue"),
)
# Older ones, and those of a language that a family or a macrolanguage stands for.
_OTHER_CODES = {
    **{"alb": "sq", "arm": "hy", "baq": "eu", "bur": "my", "chi": "zh", "cze": "cs", "dut": "nl", "fre": "fr"},
    **{"geo": "ka", "ger": "de", "gre": "el", "ice": "is", "mac": "mk", "mao": "mi", "may": "ms", "per": "fa"},
    **{"rum": "ro", "slo": "sk", "tib": "bo", "wel": "cy", "arb": "ar", "cmn": "zh", "fil": "tl", "in": "id"},
    **{"iw": "he", "ji": "yi", "jv": "jw", "lvs": "lv", "mo": "ro", "nb": "no", "nob": "no", "pes": "fa"},
    **{"swh": "sw", "zsm": "ms"},
}
_CODES = dict(zip(_ISO_639_3, LANGUAGES, strict=True)) | _OTHER_CODES
_NAMES = {name: code for code, name in LANGUAGES.items()} | ALIASES


def language_code(name: str) -> str | None:
    """Return the code of a language; None if there is none.

    Args:
        name: its code of two or three letters, alone or with a script or region (`pt-BR`, `zh_Hans_CN`, `en_US.UTF-8`),
            or its name in English.
    """
    known = name.strip().lower()
    for each in (known, re.split(r"[-_.@ ]", known, maxsplit=1)[0]):
        if each in LANGUAGES:
            return each
        if (code := _NAMES.get(each) or _CODES.get(each)) is not None:
            return code
    return None


def language_name(code: str) -> str:
    """Return the name of a language in English; of an unknown one, its code."""
    return LANGUAGES.get(code, code)
