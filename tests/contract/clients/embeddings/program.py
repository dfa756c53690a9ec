# /// script
# requires-python = ">=3.12,<3.13"
# dependencies = [
#     "cohere==7.3.1", "haystack-ai==3.4.0", "langchain-openai==1.7.3", "llama-index-embeddings-openai-like==0.4.0",
# ]
# ///
"""LangChain, LlamaIndex and Haystack ask for vectors, Cohere's client for a ranking; prints a line of JSON."""

import json
import sys

import cohere
from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.utils import Secret
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

GIVEN = json.loads(sys.argv[1])
TEXTS = GIVEN["texts"]


def langchain():
    # It would count tokens with OpenAI's tokenizer, and send those.
    options = {"check_embedding_ctx_length": False, "max_retries": 0, "api_key": "none"}
    model = OpenAIEmbeddings(base_url=f"{GIVEN['url']}/v1", model=GIVEN["model"], **options)
    return [*model.embed_documents(TEXTS), model.embed_query(TEXTS[0])]


def llama_index():
    model = OpenAILikeEmbedding(api_base=f"{GIVEN['url']}/v1", api_key="none", model_name=GIVEN["model"], max_retries=0)
    return [*model.get_text_embedding_batch(TEXTS), model.get_query_embedding(TEXTS[0])]


def haystack():
    options = {"api_base_url": f"{GIVEN['url']}/v1", "model": GIVEN["model"], "api_key": Secret.from_token("none")}
    documents = OpenAIDocumentEmbedder(**options, progress_bar=False).run([Document(content=text) for text in TEXTS])
    query = OpenAITextEmbedder(**options).run(TEXTS[0])
    return [*(document.embedding for document in documents["documents"]), query["embedding"]]


def ranked():
    client = cohere.ClientV2(api_key="none", base_url=GIVEN["url"])
    answer = client.rerank(model=GIVEN["model"], query=TEXTS[0], documents=TEXTS, top_n=2)
    return [[result.index, result.relevance_score] for result in answer.results]


SCENARIOS = {"vectors": (langchain, llama_index, haystack), "scores": (ranked,)}
print(json.dumps({scenario.__name__: scenario() for scenario in SCENARIOS[GIVEN["kind"]]}))
