"""The name of a request finds one model, or is refused."""

import pytest

from service.catalogue.entry import ModelEntry, name_fault
from service.catalogue.names import NameIndex
from service.errors import AmbiguousModel, UnknownModel


def index(*names):
    return NameIndex(ModelEntry(name=name, uri=f"gs://b/{name}") for name in names)


def test_a_slash_of_a_request_is_a_hyphen_of_the_bucket():
    assert index("meta-llama-3", "other").find("meta/llama-3").name == "meta-llama-3"
    assert index("meta-llama-3").find("meta-llama/3").name == "meta-llama-3"


def test_a_hyphen_of_a_request_is_a_slash_of_the_catalogue():
    assert index("meta/llama-3", "other").find("meta-llama-3").name == "meta/llama-3"


def test_a_slash_elsewhere_than_in_the_name_is_another_model():
    with pytest.raises(UnknownModel):
        index("a/b-c").find("a-b/c")


def test_what_may_be_two_models_is_refused_with_both_names():
    models = index("a/b-c", "a-b/c")
    assert models.find("a/b-c").name == "a/b-c"
    with pytest.raises(AmbiguousModel) as raised:
        models.find("a-b-c")
    assert raised.value.candidates == ("a/b-c", "a-b/c")
    assert raised.value.param == "model"


def test_an_alias_is_a_name():
    models = NameIndex([ModelEntry(name="a", aliases=("gpt-4", "x/y"), uri="gs://b/a")])
    assert [models.find(name).name for name in ("a", "gpt-4", "x/y", "x-y")] == ["a"] * 4


@pytest.mark.parametrize("name", ["", "..", "../a", "a/../a", "/a", "a/", "a\0", "a" * 512, "a\nb", "%2e%2e/a"])
def test_a_hostile_name_is_an_unknown_model(name):
    with pytest.raises(UnknownModel):
        index("a").find(name)


@pytest.mark.parametrize("name", ["", "..", "a/../b", "/a", "a//b", "a\0b", " a", "a,b", "a\\b", "a" * 201, "a\u202eb"])
def test_a_hostile_name_names_no_model(name):
    assert name_fault(name) is not None


@pytest.mark.parametrize("name", ["a", "org/name", "Qwen3-0.6B_v2", "modèle", "a" * 200])
def test_other_names_do(name):
    assert name_fault(name) is None


def test_the_error_of_an_unknown_model_names_few_of_many():
    with pytest.raises(UnknownModel) as raised:
        index(*(f"m{i}" for i in range(1000))).find("x")
    assert "'m9' and 990 more (see GET /v1/models)" in str(raised.value)
    assert len(raised.value.served) == 1000
