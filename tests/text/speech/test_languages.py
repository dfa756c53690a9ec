"""Languages by code and by name."""

import pytest

from service.text.speech.languages import LANGUAGES, language_code, language_name


@pytest.mark.parametrize(
    ("asked", "code"), [("de", "de"), ("German", "de"), (" EN ", "en"), ("castilian", "es"), ("yue", "yue")]
)
def test_a_language_is_known_by_its_code_and_by_its_names(asked, code):
    assert language_code(asked) == code


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        *(("EN", "en"), ("en-US", "en"), ("en_GB", "en"), ("en_US.UTF-8", "en"), ("pt-BR", "pt"), ("zh-Hans-CN", "zh")),
        *(("ENGLISH", "en"), ("haitian creole", "ht"), ("haw-US", "haw"), ("yue-HK", "yue"), ("\tEn\n", "en")),
        *(("eng", "en"), ("deu", "de"), ("ger", "de"), ("fra", "fr"), ("fre", "fr"), ("jpn", "ja"), ("jav", "jw")),
        *(
            ("jv", "jw"),
            ("iw", "he"),
            ("nb-NO", "no"),
            ("nno", "nn"),
            ("cmn-Hant-TW", "zh"),
            ("sun", "su"),
            ("fil", "tl"),
        ),
    ],
)
def test_a_language_is_known_with_its_region_and_by_its_longer_code(asked, code):
    assert language_code(asked) == code


@pytest.mark.parametrize("asked", ["", "xx", "klingon", "<|en|>", "-", "e"])
def test_an_unknown_language_has_no_code(asked):
    assert language_code(asked) is None


def test_every_code_has_a_name_that_leads_back_to_it():
    assert all(language_code(language_name(code)) == code for code in LANGUAGES)
