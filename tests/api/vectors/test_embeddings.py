"""POST /v1/embeddings: inputs, options, refusals, and what other routes say of an encoder."""

import base64

import numpy as np
import pytest

from service.errors import NonFiniteVector
from tests.api.scripted_engine import Service
from tests.api.vectors.scripted_encoder import MAX_TOKENS, MODEL, SIZE, EncoderService, error_of, vector_of
from tests.encoder.tiny import CLS, SEP, VOCAB

pytestmark = pytest.mark.anyio

CAT = (CLS, VOCAB["cat"], SEP)
DOG = (CLS, VOCAB["dog"], SEP)
LONG = " ".join(["cat"] * 20)


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ("cat", [CAT]),
        (["cat"], [CAT]),
        (["cat", "Dog"], [CAT, DOG]),
        ([5, 6], [(5, 6)]),
        ([[5, 6], [7]], [(5, 6), (7,)]),
    ],
)
async def test_an_input_is_one_text_or_several_as_strings_or_token_ids(value, texts):
    service = EncoderService()
    answer = (await service.post(input=value)).json()
    assert service.encoder.requests == [tuple(texts)]
    num_tokens = sum(map(len, texts))
    assert answer["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    assert (answer["object"], answer["model"]) == ("list", MODEL)
    assert [(item["object"], item["index"]) for item in answer["data"]] == [
        ("embedding", index) for index in range(len(texts))
    ]
    np.testing.assert_allclose([item["embedding"] for item in answer["data"]], [vector_of(text) for text in texts])


async def test_base64_is_little_endian_float32():
    answer = (await EncoderService().post(input="cat", encoding_format="base64")).json()
    data = base64.b64decode(answer["data"][0]["embedding"])
    np.testing.assert_array_equal(np.frombuffer(data, "<f4"), vector_of(CAT))


async def test_the_user_is_accepted():
    assert (await EncoderService().post(input="cat", user="someone")).status_code == 200


@pytest.mark.parametrize(("sizes", "wanted"), [((), 3), ((2, 3), 3), (None, SIZE), ((2,), SIZE)])
async def test_a_vector_is_cut_to_dimensions_that_the_model_was_trained_for_and_has_length_one_again(sizes, wanted):
    service = EncoderService(vectors={"matryoshka_sizes": sizes})
    [item] = (await service.post(input="cat", dimensions=wanted)).json()["data"]
    expected = vector_of(CAT)[:wanted]
    np.testing.assert_allclose(item["embedding"], expected / np.linalg.norm(expected), rtol=1e-6)


async def test_a_cut_vector_is_not_normalized_if_the_whole_one_is_not():
    service = EncoderService(vectors={"matryoshka_sizes": (), "is_normalized": False})
    [item] = (await service.post(input="cat", dimensions=2)).json()["data"]
    np.testing.assert_allclose(item["embedding"], vector_of(CAT)[:2])


@pytest.mark.parametrize(
    ("sizes", "wanted", "told"), [(None, 2, "not trained"), ((2,), 3, "trained for: 2"), ((), SIZE + 1, "1 to 4")]
)
async def test_dimensions_that_the_model_was_not_trained_for_are_refused(sizes, wanted, told):
    response = await EncoderService(vectors={"matryoshka_sizes": sizes}).post(input="cat", dimensions=wanted)
    error = error_of(response)
    assert (response.status_code, error["param"]) == (400, "dimensions")
    assert told in error["message"]


async def test_a_text_that_is_too_long_is_refused_with_both_numbers():
    response = await EncoderService().post(input=["cat", LONG])
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "input[1]")
    assert f"at most {MAX_TOKENS} tokens" in error["message"]
    assert "'input[1]' has 22" in error["message"]


@pytest.mark.parametrize(
    ("limit", "value", "text"),
    [
        (4, LONG, (CLS, VOCAB["cat"], VOCAB["cat"], SEP)),
        (-1, LONG, (CLS, *[VOCAB["cat"]] * (MAX_TOKENS - 2), SEP)),
        (2, [5, 6, 7], (5, 6)),
        (MAX_TOKENS, "cat", CAT),
        (1, LONG, (CLS,)),
    ],
)
async def test_truncate_prompt_tokens_cuts_the_end_and_keeps_the_special_tokens(limit, value, text):
    service = EncoderService()
    answer = await service.post(input=value, truncate_prompt_tokens=limit)
    assert answer.status_code == 200
    assert service.encoder.requests == [(text,)]


async def test_a_prompt_of_the_model_comes_before_the_text():
    service = EncoderService(vectors={"prompts": {"query": "query: ", "document": ""}})
    await service.post(input="cat", prompt_name="query")
    await service.post(input="cat", prompt_name="document")
    with_prompt = (CLS, VOCAB["query"], VOCAB[":"], VOCAB["cat"], SEP)
    assert service.encoder.requests == [(with_prompt,), (CAT,)]


NAMED = {"Retrieval-query": "query: ", "passage": "the ", "clustering": "red "}


@pytest.mark.parametrize(
    ("prompts", "input_type", "before"),
    [
        (NAMED, "query", ("query", ":")),
        (NAMED, "search_query", ("query", ":")),
        (NAMED, "document", ("the",)),
        (NAMED, "search_document", ("the",)),
        (NAMED, "clustering", ("red",)),
        ({"query": "query: "}, "search_document", ()),  # documents as they are, even against a default
    ],
)
async def test_an_input_type_chooses_the_prompt_of_such_texts(prompts, input_type, before):
    service = EncoderService(vectors={"prompts": prompts, "default_prompt": next(iter(prompts))})
    assert (await service.post(input="cat", input_type=input_type)).status_code == 200
    assert service.encoder.requests == [((CLS, *(VOCAB[word] for word in before), VOCAB["cat"], SEP),)]


@pytest.mark.parametrize(
    ("prompts", "input_type", "known"),
    [
        ({}, "query", "no prompt for 'query'. It has no prompts: leave the field out."),
        ({}, "search_document", "no prompt for 'search_document'. It has no prompts: leave the field out."),
        ({"document": "the "}, "search_query", "no prompt for 'search_query'. Its prompts: 'document'."),
        ({"query": "red "}, "clustering", "no prompt for 'clustering'. Its prompts: 'query'."),
    ],
)
async def test_an_input_type_without_a_prompt_is_refused(prompts, input_type, known):
    service = EncoderService(vectors={"prompts": prompts})
    answer = await service.post(input="cat", input_type=input_type)
    assert (answer.status_code, error_of(answer)["param"]) == (400, "input_type")
    assert known in error_of(answer)["message"]


async def test_the_default_prompt_is_for_strings_alone():
    service = EncoderService(vectors={"prompts": {"query": "query: "}, "default_prompt": "query"})
    await service.post(input="cat")
    await service.post(input=[5])
    assert service.encoder.requests == [((CLS, VOCAB["query"], VOCAB[":"], VOCAB["cat"], SEP),), ((5,),)]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["cat", ""]}, "input[1]"),
        ({"input": [[]]}, "input[0]"),
        ({"input": ["cat"] * 2049}, "input"),
        ({"input": ["cat"] * 10_000}, "input"),
        ({"input": ["cat", [5]]}, "input[1]"),
        ({"input": ["cat", 5]}, "input[1]"),
        ({"input": [5, "cat"]}, "input[1]"),
        ({"input": [5, True]}, "input[1]"),
        ({"input": {"text": "cat"}}, "input"),
        ({"input": [5, 10_000]}, "input[1]"),
        ({"input": [[5], [-1]]}, "input[1][0]"),
        ({"input": "cat", "dimensions": 0}, "dimensions"),
        ({"input": "cat", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "cat", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "cat", "truncate_prompt_tokens": MAX_TOKENS + 1}, "truncate_prompt_tokens"),
        ({"input": "cat", "prompt_name": "query"}, "prompt_name"),
        ({"input": [5], "prompt_name": "query"}, "prompt_name"),
        ({"input": [5], "input_type": "query"}, "input_type"),
        ({"input": "cat", "input_type": "image"}, "input_type"),
        ({"input": "cat", "input_type": "query", "prompt_name": "query"}, "input_type"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_bad_input_is_refused_by_its_name_and_never_encoded(body, param):
    service = EncoderService()
    response = await service.post(**body)
    assert (response.status_code, error_of(response)["param"]) == (400, param)
    assert service.encoder.requests == []


async def test_a_text_without_a_finite_vector_is_an_error_of_the_server():
    service = EncoderService()
    service.encoder.error = NonFiniteVector(0)
    response = await service.post(input="cat")
    assert (response.status_code, error_of(response)["code"]) == (500, "broken_scores")


async def test_a_request_has_a_deadline():
    service = EncoderService(request_timeout_s=0.05)
    service.encoder.answers = False
    assert (await service.post(input="cat")).status_code == 504


async def test_an_unknown_model_is_not_found():
    assert (await EncoderService().post(model="other", input="cat")).status_code == 404


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
        ("/tokenize", {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
async def test_an_encoder_refuses_to_generate_by_name(path, body):
    response = await EncoderService().post(path, **body)
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (400, "unsupported_model", "model")
    assert MODEL in error["message"]
    assert "/v1/embeddings" in error["message"]


async def test_a_model_that_generates_refuses_to_embed_by_name():
    response = await Service().post("/v1/embeddings", {"model": "org/small-chat", "input": "hi"})
    assert (response.status_code, error_of(response)["code"]) == (400, "unsupported_model")
    assert "/v1/chat/completions" in error_of(response)["message"]


async def test_models_tell_dimensions_and_maximum_length():
    [model] = (await EncoderService().get("/v1/models")).json()["data"]
    assert (model["id"], model["max_model_len"], model["embedding_dimensions"]) == (MODEL, MAX_TOKENS, SIZE)


async def test_texts_are_tokenized_as_they_are_embedded():
    service = EncoderService()
    assert (await service.post("/tokenize", prompt="cat")).json()["tokens"] == list(CAT)
    assert (await service.post("/detokenize", tokens=list(CAT))).json()["prompt"] == "[CLS] cat [SEP]"
