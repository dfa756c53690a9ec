"""The grammar that a request's answer must follow, compiled off the event loop."""

from collections.abc import Sequence

from service.api.generation.tool_use import ToolUse
from service.api.http.call import Call
from service.api.schema.generation import GenerationRequest
from service.api.served import ServedModel
from service.errors import InvalidParameter
from service.text.grammar.compiler import Grammar


async def compiled_grammar(
    call: Call, model: ServedModel, body: GenerationRequest, use: ToolUse | None = None
) -> Grammar | None:
    """Return the grammar of a request's answers; None if its fields allow any text after all.

    Args:
        call: the HTTP request.
        model: the model that answers.
        body: its checked body.
        use: how the answers may call tools; None if they call none.

    Raises:
        InvalidParameter: the grammar cannot be enforced, or a field contradicts it.
        DeadlineExceeded: the request's time is over.
    """
    check_options(body, model)
    grammar, relaxed = await call.run_in_thread(lambda: _compile(body, model, use))
    call.ignore(relaxed)
    return grammar


def _compile(body: GenerationRequest, model: ServedModel, use: ToolUse | None) -> tuple[Grammar | None, Sequence[str]]:
    """Return the grammar, and the paths of what it does not hold answers to."""
    definition = body.grammar_definition()
    if use is None:
        return (None if definition is None else model.grammars.compile([definition.part], definition.param)), ()
    parts = use.grammar(model, definition)
    try:
        return model.grammars.compile(parts, "tools"), use.relaxed
    except InvalidParameter:
        if not use.optional:
            raise
    parts = use.grammar(model, definition, has_optional=False)
    return model.grammars.compile(parts, "tools"), [*use.relaxed, *use.optional]


def check_options(body: GenerationRequest, model: ServedModel) -> None:
    """Check that an answer can follow a grammar and end where the grammar does.

    Raises:
        InvalidParameter: an option could leave no token to sample.
    """
    if not (model.stop_ids or body.stop_token_ids) or (body.ignore_eos and not body.stop_token_ids):
        message = "'ignore_eos' contradicts a grammar: nothing could end the answer. Send 'stop_token_ids' too."
        raise InvalidParameter(message, param="ignore_eos")
    for name, contradicts in (
        ("min_tokens", body.min_tokens > 0),
        ("bad_words", bool(body.bad_words)),
        ("allowed_token_ids", body.allowed_token_ids is not None),
    ):
        if contradicts:
            message = f"'{name}' contradicts a grammar, which alone decides which tokens may come and when to end."
            raise InvalidParameter(message, param=name)
