"""No work of unknown size on the event loop: every call whose time grows with its input says here where it runs.

A new one fails this test until it is listed, and whoever lists it says what bounds it.
"""

import ast
from pathlib import Path

import pytest

SERVICE = Path(__file__).parents[2] / "service"
# Calls that take the longer the longer their input is, and hold the interpreter meanwhile.
LONG_CALLS = frozenset({
    *("from_json", "to_json", "loads", "dumps", "model_validate", "validate_json", "dump_json", "model_dump"),
    *("model_dump_json", "compress", "decompress", "decompressobj", "b64decode", "b64encode", "urlsafe_b64decode"),
    *("urlsafe_b64encode", "encode_batch", "LLMatcher", "compute_bitmask", "regex_to_lark", "gbnf_to_lark"),
})  # fmt: skip
PARSED = "in the process for long bodies, or of a body of 32 KB at most"
THREAD = "in a thread, or in a process for long work"
OURS = "of what this service made, within a limit on tokens, lines or fields"
STORE = "in the threads of a store"
START = "once, of a checkpoint or of this program"
WHERE = {
    "api/audio.py": (OURS, "_json"),
    "api/batch/answer_log.py": (STORE, "AnswerLog.add AnswerLog.load"),
    "api/batch/batches.py": (STORE, "Batches.cancel Batches.create Batches.save Batches.stored Batches.tidy"),
    "api/batch/files.py": (STORE, "Files.add Files.delete _is_deleted _is_over _stored"),
    "api/batch/lines.py": (STORE, "parse_line"),
    "api/batch/recordings.py": (STORE, "_text"),
    "api/batch/records.py": (STORE, "Batch.from_json Batch.to_json"),
    "api/batch/results.py": (STORE, "_write"),
    "api/conversation.py": (THREAD, "AnswerFormat._schema"),
    "api/description.py": (START, "_document"),
    "api/embeddings.py": (THREAD, "create_embeddings.write"),
    "api/generation/answer_rules.py": (THREAD, "ToolUse._too_large GrammarStatement.text"),
    "api/generation/chat_prompt.py": (THREAD, "_template_call _with_written_arguments"),
    "api/generation/message_content.py": (OURS, "_input"),
    "api/generation/response_items.py": (OURS, "_CustomInput.push _action"),
    "api/generation/sealed.py": (PARSED, "OwnTexts.unsealed _signature seal"),
    "api/generation/token_answers.py": (THREAD, "count_tokens text_answer token_answer"),
    "api/http/errors.py": (OURS, "encoded"),
    "api/http/form.py": (OURS, "scalar"),
    "api/http/json_lines.py": (OURS, "JsonLineStream.frame"),
    "api/http/sse.py": (OURS, "frame"),
    "api/memory/continued.py": (THREAD, "packed_items"),
    "api/memory/store.py": (STORE, "Kept.conversation ResponseStore.write _packed _unpacked"),
    "api/ollama.py": (OURS, "_OllamaAnswer._complete_call embed_like_older_ollama embed_like_ollama"),
    "api/pooling.py": (THREAD, "embed_like_llama_cpp.write pool.write"),
    "api/render.py": (OURS, "json_answer"),
    "api/responses.py": (OURS, "_ResponseAnswer.response"),
    "api/schema/chat.py": (PARSED, "as_arguments"),
    "api/schema/decisions.py": (PARSED, "DecisionPart.rewritten"),
    "api/schema/response_tools.py": (PARSED, "ChosenTool.as_stated NamespacedTool.as_stated"),
    "api/schema/token_ids.py": (PARSED, "_read _written"),
    "api/schema/unfit.py": (PARSED, "unfit_value"),
    "api/schema/wire.py": (PARSED, "WireObject.json_with checked parse parse_light"),
    "api/server_info.py": (START, "_loads"),
    "api/stored_responses.py": (PARSED, "item_page"),
    "api/vectors/numbers.py": (THREAD, "written"),
    "api/work/long_body.py": (PARSED, "_read_result _written_result"),
    "text/grammar/compiler.py": (THREAD, "GrammarCompiler._compiled text_of"),
    "text/grammar/definition.py": (THREAD, "of_choices of_grammar of_pattern"),
    "text/grammar/lark.py": (THREAD, "_value"),
    "text/grammar/schema.py": (THREAD, "reduced"),
}
SOURCES = sorted((*(SERVICE / "api").rglob("*.py"), *(SERVICE / "text" / "grammar").rglob("*.py")))


def long_calls(source):
    """Return the functions, with the classes around them, that have such calls, and the line of one in each."""
    found = {}

    def visit(node, scope):
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = (*scope, child.name)
            if isinstance(child, ast.Call):
                name = child.func.attr if isinstance(child.func, ast.Attribute) else getattr(child.func, "id", None)
                if name in LONG_CALLS:
                    found.setdefault(".".join(inner), child.lineno)
            visit(child, inner)

    visit(ast.parse(source), ())
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(SERVICE)))
def test_every_call_that_may_take_long_says_where_it_runs(path):
    name = str(path.relative_to(SERVICE))
    _, listed = WHERE.get(name, ("", ""))
    # What is inside a listed function runs where that does.
    unlisted = [
        f"{name}:{line}: {function}"
        for function, line in long_calls(path.read_text()).items()
        if function and not any(f"{function}.".startswith(f"{known}.") for known in listed.split())
    ]
    assert unlisted == []


def test_every_function_that_is_listed_has_such_a_call():
    for name, (_, listed) in WHERE.items():
        functions = long_calls((SERVICE / name).read_text())
        assert [known for known in listed.split() if not any(f.startswith(known) for f in functions)] == [], name


def test_a_new_call_is_found():
    source = "import json\n\n\nclass A:\n    async def read(self, body):\n        return json.loads(body)\n"
    assert long_calls(source) == {"A.read": 6}
