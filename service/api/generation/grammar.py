"""The grammar that a request's answer must follow, compiled off the event loop."""

from service.api.dependencies import RequestContext, ServedModel
from service.api.generation.tool_use import ToolUse
from service.api.schema.generation import GenerationRequest
from service.errors import InvalidParameter
from service.text.grammar.compiler import Grammar


async def compiled_grammar(
    context: RequestContext, body: GenerationRequest, use: ToolUse | None = None
) -> Grammar | None:
    """Return the grammar of a request's answers; None if its fields allow any text after all.

    Args:
        context: of the HTTP request.
        body: its checked body.
        use: how the answers may call tools; None if they call none.

    Raises:
        InvalidParameter: the grammar cannot be enforced, or a field contradicts it.
        DeadlineExceeded: the request's time is over.
    """
    check_options(body, context.model)
    return await context.run_in_thread(lambda: _compile(body, context.model, use))


def _compile(body: GenerationRequest, model: ServedModel, use: ToolUse | None) -> Grammar | None:
    definition = body.grammar_definition()
    if use is not None:
        return model.grammars.compile(use.grammar(model, definition), "tools")
    return None if definition is None else model.grammars.compile([definition.part], definition.param)


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
