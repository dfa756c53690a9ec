"""Rules that a request's answers follow: the tool calls and the thinking that they may have, and their grammar."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any, NamedTuple

from service.api.conversation import NO_PARAMETERS, AnswerFormat, Conversation, Function, Options
from service.api.generation.chat_prompt import ChatPrompt
from service.api.http.call import Call
from service.api.served import ServedModel
from service.errors import BodyTooLaborious, InvalidParameter
from service.text.bad_words import BadWords
from service.text.formats.codecs import Literal
from service.text.formats.families import NO_CALLS
from service.text.formats.format import Format
from service.text.formats.grammar import CallableTool, CallRules, Reasoning, answer_grammar, unheld_keywords
from service.text.formats.parameters import parameters_of
from service.text.formats.parts import Content, Thought
from service.text.formats.reader import AnswerReader, mark_ids, region_at_end
from service.text.grammar import definition
from service.text.grammar.behind_thinking import GrammarBehindThinking, ThinkingTags, space_tokens
from service.text.grammar.compiler import GrammarCompiler, text_of
from service.text.grammar.definition import GrammarDefinition
from service.text.grammar.matcher import Grammar
from service.text.prompt_model import PromptModel
from service.text.tokenizer import Tokenizer
from service.worker.process import limit_rest

MAX_SCHEMAS_BYTES = 256 * 1024
DIGEST_BYTES = 16
GRAMMAR_PROCESSOR_S = 2.0  # for a grammar that is tried
# Of what states a grammar that is compiled at once, within a second at worst: schemas without patterns, or choices.
MAX_PLAIN_CHARS = 16 * 1024
NOT_PLAIN = (b'"pattern', b'"kind": "grammar"', b'"kind": "regex"', b'"kind": "json", "value": "')


@dataclass(frozen=True)
class ToolUse:
    """The calls that an answer may have, or must consist of."""

    tool_format: Format
    tools: Sequence[Function]  # those that may be called
    is_required: bool
    is_named: bool  # whether the request names the one function that must be called
    allows_several: bool

    @cached_property
    def callables(self) -> tuple[CallableTool, ...]:
        """The tools as grammars need them, after milliseconds; raises InvalidParameter for a schema at fault.

        A schema that a call must satisfy, since the request requires calls or the tool is strict, is enforced whole.
        """
        return self._read[0]

    @property
    def relaxed(self) -> Sequence[str]:
        """The paths of what the other schemas have and no call is held to."""
        return self._read[1]

    @property
    def optional(self) -> Sequence[str]:
        """The paths of the other schemas."""
        return [tool.parameters_at for tool in self.tools if not self._promises(tool)]

    @cached_property
    def _read(self) -> tuple[tuple[CallableTool, ...], Sequence[str]]:
        relaxed: list[str] = []
        too_large = self._too_large()
        found: list[CallableTool] = []
        for tool in self.tools:
            if tool.parameters_at in too_large:
                relaxed.append(tool.parameters_at)
                tool = replace(tool, parameters={})  # noqa: PLW2901
            found.append(_callable(tool, self.tool_format, None if self._promises(tool) else relaxed))
        return tuple(found), relaxed

    @property
    def has_promises(self) -> bool:
        """Whether the request asks that calls satisfy a schema."""
        return any(map(self._promises, self.tools))

    def _promises(self, tool: Function) -> bool:
        """Return whether the request asks that calls of a tool satisfy its whole schema."""
        return self.is_required or tool.is_strict

    def _too_large(self) -> set[str]:
        """Return the paths of the schemas without which the others are small enough, the largest first.

        Raises:
            InvalidParameter: the schemas that must be enforced are too large by themselves.
        """
        sizes = {tool.parameters_at: len(json.dumps(tool.parameters)) for tool in self.tools}
        left_out: set[str] = set()
        for path in sorted(self.optional, key=sizes.__getitem__, reverse=True):
            if sum(sizes.values()) <= MAX_SCHEMAS_BYTES:
                break
            sizes[path] = 0
            left_out.add(path)
        if sum(sizes.values()) > MAX_SCHEMAS_BYTES:
            message = f"Invalid 'tools': their parameters are larger than {MAX_SCHEMAS_BYTES} bytes together."
            raise InvalidParameter(message, param="tools")
        return left_out

    @property
    def text_names(self) -> dict[str, frozenset[str]]:
        """Of each function, the parameters whose values are written as they are."""
        return {tool.name: frozenset(p.name for p in tool.parameters.stated if p.is_text) for tool in self.callables}

    def rules(
        self, answer: GrammarDefinition | None, reasoning: Reasoning | None, *, has_optional: bool = True
    ) -> CallRules:
        """Return what calls the answer may have, after milliseconds.

        Args:
            answer: the grammar of an answer that calls no tool; None for any text.
            reasoning: what may come before.
            has_optional: whether calls are held to the schemas that they need not satisfy, as far as those can be
                enforced; otherwise their arguments are any object.

        Raises:
            InvalidParameter: the schema of a tool cannot be enforced.
        """
        callables = [
            tool if has_optional or self._promises(stated) else tool.with_any_arguments()
            for tool, stated in zip(self.callables, self.tools, strict=True)
        ]
        part = None if answer is None or self.is_required else answer.part
        return CallRules(callables, self.is_required, self.allows_several, part, reasoning)


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """Rules of all answers to one request."""

    constraint: Grammar | GrammarBehindThinking | BadWords | None = None  # None: any text
    use: ToolUse | None = None  # None: no calls
    reader: Callable[[], AnswerReader] | None = None  # of each answer; None if all of it is content
    shown_ids: frozenset[int] = frozenset()  # special tokens that the text must show, to be read and taken out again
    text_grammar: Grammar | None = None  # of the content; None for any


async def chat_rules(call: Call, model: ServedModel, conversation: Conversation, prompt: ChatPrompt) -> AnswerRules:
    """Return the rules of the answers to a conversation.

    Args:
        call: the HTTP request.
        model: the model that answers.
        conversation: what it answers; its turns do not matter.
        prompt: the rendered conversation.

    Raises:
        InvalidParameter: the grammar cannot be enforced, or a field contradicts it.
        DeadlineExceeded: the request's time is over.
    """
    options, answer_format = conversation.options, conversation.options.format
    use = _tool_use(conversation, model) if conversation.shown_tools else None
    form = NO_CALLS if model.chat_template is None else model.chat_template.format
    form = form if use is not None else form.without_calls
    if use is None and not options.skip_special_tokens and answer_format is None:
        form = _with_shown_marks(form, model.tokenizer)
    begins = Content if prompt.continues_last else region_at_end(form, prompt.end)
    tags = ThinkingTags.of((tags.marks for tags in form.thinking), model.tokenizer)
    # Calls and JSON begin behind the blank line that models write there; a pattern may hold the space itself.
    keeps_space = answer_format is not None and answer_format.kind != "json"
    is_held = answer_format is not None or (use is not None and use.is_required)
    reasoning = None
    if is_held and form.thinking and begins is not Content and tags is None:
        stated = [each for each in form.thinking if prompt.end.endswith(each.open.strip())] or form.thinking
        reasoning = Reasoning("" if begins is Thought else stated[0].open, stated[0].close, not keeps_space)
    own_form = NO_CALLS if begins is Content and use is None else form
    statement = GrammarStatement(answer_format, use, own_form, reasoning)
    constraint, text_names = await _constraint(call, model, options, statement)
    text_grammar = constraint if answer_format is not None and isinstance(constraint, Grammar) else None
    if text_grammar is not None and use is None and statement.has_frame:
        text_grammar, _ = await _grammar(call, model, replace(statement, form=NO_CALLS, reasoning=None))
    if is_held and form.thinking and begins is Content:
        form, begins = replace(form, thinking=()), None  # the grammar holds it from its beginning
    elif tags is not None and begins is not Content and isinstance(constraint, Grammar):
        space_ids = frozenset[int]() if keeps_space else space_tokens(model.tokenizer)
        constraint = GrammarBehindThinking(constraint, tags, begins is Thought, not is_held, space_ids)
    if not (form.calls or form.thinking or form.has_headers):
        return AnswerRules(constraint, use, text_grammar=text_grammar)
    ids = mark_ids(form, model.tokenizer)
    reader = partial(AnswerReader, form, ids, text_names=text_names, begins=begins, keeps_space=keeps_space)
    shown_ids = frozenset(ids.values()) & model.tokenizer.special_ids
    return AnswerRules(constraint, use, reader, shown_ids, text_grammar)


def _with_shown_marks(form: Format, tokenizer: Tokenizer) -> Format:
    """Return the format of an answer whose special tokens are shown, those of its marks too."""
    if form.has_headers:
        return NO_CALLS
    special = {mark for mark, token_id in mark_ids(form, tokenizer).items() if token_id in tokenizer.special_ids}
    thinking, wraps = (
        tuple(tags for tags in regions if special.isdisjoint(tags.marks)) for regions in (form.thinking, form.wraps)
    )
    return replace(form, thinking=thinking, wraps=wraps, hidden=())


async def completion_rules(call: Call, model: ServedModel, options: Options) -> AnswerRules:
    """Return the rules of a completion's answers; raises as `chat_rules`."""
    constraint, _ = await _constraint(call, model, options, GrammarStatement(options.format))
    return AnswerRules(constraint, text_grammar=constraint if isinstance(constraint, Grammar) else None)


async def _constraint(
    call: Call, model: ServedModel, options: Options, statement: "GrammarStatement"
) -> tuple[Grammar | BadWords | None, Mapping[str, Set[str]]]:
    """Return what constrains each answer, compiled off the event loop, and the text parameters of each function."""
    use = statement.use
    if options.format is None and (use is None or not (use.tool_format.is_taught or use.has_promises)):
        if use is not None:
            call.ignore(await call.compile(lambda: use.relaxed))
        return BadWords.of(options.bad_words, model.tokenizer) if options.bad_words else None, {}
    _check_options(options, model)
    grammar, stated = await _grammar(call, model, statement)
    call.ignore(stated.relaxed)
    return grammar, {name: frozenset(names) for name, names in stated.text_names.items()}


async def _grammar(call: Call, model: ServedModel, statement: "GrammarStatement") -> tuple[Grammar, "StatedGrammar"]:
    """Return the strictest grammar that compiles.

    How long a grammar takes does not follow from its length, so it is compiled in the worker process first, which can
    be killed, and here once it has taken little. Schemas are bounded by themselves: short ones are compiled at once.
    """
    compiler = model.grammars

    def begin() -> tuple[bytes, StatedGrammar | None]:
        text = statement.text()
        key = hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest()
        stated = compiler.stated.get(key)
        if stated is None and len(text) <= MAX_PLAIN_CHARS and not any(map(text.__contains__, NOT_PLAIN)):
            stated = stated_grammar(compiler, statement)
            compiler.stated.put(key, stated)
        return key, stated

    key, stated = await call.compile(begin)
    num_left_out = 0
    while stated is None:
        try:
            stated = await call.try_grammar(tried_grammar, model.prompt_model, statement, model.stop_ids, num_left_out)
        except BodyTooLaborious as error:
            if num_left_out or statement.use is None or not statement.use.optional:
                param = statement.field
                message = f"Invalid '{param}': compiling it {error.reason}. Simplify it."
                raise InvalidParameter(message, param=param) from error
            num_left_out = 1
        else:
            compiler.stated.put(key, stated)
    return await call.compile(lambda: compiler.compile_text(stated.text, stated.param)), stated


@dataclass(frozen=True)
class GrammarStatement:
    """What of a request its grammar follows from, besides the model."""

    format: AnswerFormat | None
    use: ToolUse | None = None
    form: Format = NO_CALLS  # how the answer is written
    reasoning: Reasoning | None = None  # whose tags are text, before what the grammar holds

    @property
    def has_frame(self) -> bool:
        """Whether there is more around what the request asks for than the grammar of that."""
        return self.reasoning is not None or self.form.has_headers

    @property
    def field(self) -> str:
        """The field of the request that errors name."""
        if self.use is not None:
            return "tools"
        assert self.format is not None, "the request has a grammar"
        return self.format.field

    def text(self) -> bytes:
        """Return all of it as one text."""
        stated: list[Any] = [self.format, self.form.has_headers, self.reasoning]
        if (use := self.use) is not None:
            stated += [use.is_required, use.is_named, use.allows_several]
            stated += [(tool.parameters_at, tool.name, tool.parameters, tool.is_strict) for tool in use.tools]
        return json.dumps(stated, default=vars).encode()

    def answer(self) -> GrammarDefinition | None:
        """Return the grammar of an answer that calls no tool; None for any text.

        Raises:
            InvalidParameter: it cannot be enforced, or not beside tools.
        """
        if self.format is None:
            return None
        answer, use = self.format.definition(), self.use
        if use is not None and not use.is_required and use.tool_format.calls[0].is_bare and not self.form.has_headers:
            message = (
                f"'{self.format.field}' contradicts 'tools': this model's calls begin like JSON answers. "
                "Send 'tool_choice': 'none' or 'required'."
            )
            raise InvalidParameter(message, param=self.format.field)
        return answer

    def grammars(self, compiler: GrammarCompiler) -> Iterator[tuple[Sequence[Mapping[str, Any]], str, Sequence[str]]]:
        """Yield grammars, the strictest first: parts, the field for errors, and the paths that are not enforced."""
        answer, use = self.answer(), self.use
        tokenizer = compiler.tokenizer

        def framed(rules: CallRules) -> Sequence[Mapping[str, Any]]:
            other_ids = {i for i in tokenizer.special_ids - compiler.end_ids if i < compiler.vocab_size}
            return answer_grammar(self.form, rules, mark_ids(self.form, tokenizer), other_ids)

        if use is not None:
            for has_optional in (True, False) if use.optional else (True,):
                relaxed = use.relaxed if has_optional else [*use.relaxed, *use.optional]
                yield framed(use.rules(answer, self.reasoning, has_optional=has_optional)), "tools", relaxed
        elif answer is not None:
            rules = CallRules(answer=answer.part, reasoning=self.reasoning)
            yield framed(rules) if self.has_frame else [answer.part], answer.param, ()


class StatedGrammar(NamedTuple):
    """A grammar that has been compiled once, as the compiler takes it."""

    text: str
    param: str  # the field of the request that errors name
    relaxed: list[str]  # the paths of what it does not enforce
    text_names: dict[str, list[str]]  # of each function, the parameters whose values are written as they are


_compilers: dict[str, GrammarCompiler] = {}  # in the worker process, by the model: the one that was used last


def tried_grammar(
    model: PromptModel, statement: GrammarStatement, stop_ids: frozenset[int], num_left_out: int
) -> StatedGrammar:
    """Return, in the worker process, what `stated_grammar` returns, within a limit of time."""
    if model.key not in _compilers:
        _compilers.clear()
        _compilers[model.key] = GrammarCompiler(model.tokenizer, model.vocab_size, stop_ids)
    _compilers[model.key].prepare()  # which takes as long as the vocabulary is large, and is no fault of the grammar
    limit_rest(GRAMMAR_PROCESSOR_S)
    return stated_grammar(_compilers[model.key], statement, num_left_out)


def stated_grammar(compiler: GrammarCompiler, statement: GrammarStatement, num_left_out: int = 0) -> StatedGrammar:
    """Return the strictest grammar that compiles, without the strictest ones of those that a request allows.

    Raises:
        InvalidParameter: none compiles.
    """
    failure, use = None, statement.use
    for parts, param, relaxed in islice(statement.grammars(compiler), num_left_out, None):
        text = text_of(parts)
        try:
            compiler.compile_text(text, param)
        except InvalidParameter as error:
            failure = error
        else:
            names = {} if use is None else {name: sorted(names) for name, names in use.text_names.items()}
            return StatedGrammar(text, param, list(relaxed), names)
    assert failure is not None, "the request has a grammar"
    raise failure


def _tool_use(conversation: Conversation, model: ServedModel) -> ToolUse | None:
    """Return how the answers to a conversation whose template has rendered its tools may call them.

    None for no known way.
    """
    tool_format = model.chat_template.tool_format if model.chat_template is not None else None
    if tool_format is None:
        return None
    choice = conversation.choice
    several = conversation.allows_several_calls and tool_format.allows_several and not choice.is_named
    return ToolUse(
        tool_format,
        [tool for tool in conversation.tools if not choice.names or tool.name in choice.names],
        is_required=choice.mode == "required",
        is_named=choice.is_named,
        allows_several=several,
    )


def _check_options(options: Options, model: ServedModel) -> None:
    """Check that an answer can follow a grammar and end where the grammar does.

    Raises:
        InvalidParameter: an option could leave no token to sample.
    """
    if not (model.stop_ids or options.stop_token_ids) or (options.ignore_eos and not options.stop_token_ids):
        message = "'ignore_eos' contradicts a grammar: nothing could end the answer. Send 'stop_token_ids' too."
        raise InvalidParameter(message, param="ignore_eos")
    for name, contradicts in (
        ("min_tokens", options.min_tokens > 0),
        ("bad_words", bool(options.bad_words)),
        ("allowed_token_ids", options.allowed_token_ids is not None),
    ):
        if contradicts:
            message = f"'{name}' contradicts a grammar, which decides which tokens may come and when to end."
            raise InvalidParameter(message, param=name)


def _callable(tool: Function, form: Format, relaxed: list[str] | None) -> CallableTool:
    schema, param = tool.parameters, tool.parameters_at
    if schema is None or (not schema and tool.is_strict):
        schema = NO_PARAMETERS | {"additionalProperties": False}
    schema = _of_object(schema, param, relaxed)
    part = definition.json_part(schema, param, is_strict=tool.is_strict, relaxed=relaxed)
    codec = form.calls[0].codec
    if codec.is_json:
        return CallableTool(tool.name, part)
    parameters = parameters_of(part, param, relaxed)
    for path in unheld_keywords(part, param) if isinstance(codec, Literal) else ():
        if relaxed is None:
            message = f"Invalid '{path}': this model writes arguments as literals, which cannot be held to it."
            raise InvalidParameter(message, param=path)
        relaxed.append(path)
    return CallableTool(tool.name, part, parameters)


def _of_object(schema: dict[str, Any], param: str, relaxed: list[str] | None) -> dict[str, Any]:
    """Return the schema of arguments, which are an object even where it does not say so."""
    stated = schema.get("type")
    if stated is not None and "object" not in (stated if isinstance(stated, list) else [stated]):
        param = f"{param}.type"
        if relaxed is None:
            message = f"Invalid '{param}': the parameters of a function are an object, so it must be 'object'."
            raise InvalidParameter(message, param=param)
        relaxed.append(param)
        return {"type": "object"}
    return {keyword: value for keyword, value in schema.items() if keyword != "nullable"} | {"type": "object"}
