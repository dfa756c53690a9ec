"""Messages to the single prompt string that a chat model was trained on, by the checkpoint's Jinja template.

The template is compiled once, when the checkpoint is loaded; requests cannot send their own. It comes with the weights
and is not trusted further: it runs in a sandbox, and that in a process of its own.
Source: https://huggingface.co/docs/transformers/chat_templating_writing
"""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, override

from service.errors import InvalidParameter, MalformedCheckpoint, TemplateFailed
from service.text.formats.detection import detected
from service.text.formats.format import Format
from service.text.template_process import TemplateProcess

# What `render` gives every template.
ARGUMENTS = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
DEFAULT, TOOL_USE, RAG = "default", "tool_use", "rag"
VARIANTS = (TOOL_USE, RAG)  # what is chosen for a chat with tools, and for one with documents
CALLED, CALL_ID = "called_function", "call00001"  # of the call that a template is tried with
# The ways in which templates take tools: transformers' variable, SmolLM3's, and as Phi-4-mini's a text of the system's
# message. Source: their tokenizer_config.json and chat_template.jinja.
OFFERS = TOOLS, XML_TOOLS, OF_SYSTEM = "tools", "xml_tools", "system message"


class ChatTemplate:
    """A compiled template and the special tokens that it may use."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        *,
        uri: str = "chat template",
        file: str = "chat_template.jinja",
        tool_call_parser: str | None = None,
        reasoning_parser: str | None = None,
        response_template: Mapping[str, Any] = MappingProxyType({}),
        defaults: Mapping[str, Any] = MappingProxyType({}),
        is_isolated: bool = False,
        variants: "Mapping[str, ChatTemplate]" = MappingProxyType({}),
    ) -> None:
        """Compile a template.

        Args:
            source: the template.
            special_tokens: by transformers' names.
            uri: where it came from, for error messages.
            file: the name of its file there.
            tool_call_parser: the name of the format of tool calls; None to find it from the template.
            reasoning_parser: the same for reasoning.
            response_template: transformers' description of answers, if the checkpoint has one.
            defaults: values of variables that a request does not set.
            is_isolated: whether a process of its own compiles it, while the caller goes on, and renders it.
            variants: the checkpoint's templates for other chats, by the names of `VARIANTS`.

        Raises:
            MalformedCheckpoint: the template does not compile.
        """
        self.source = source
        self._variants = dict(variants)
        self._place = (uri, file)
        self._defaults = dict(defaults)
        self._parsers: dict[str, Any] = {
            "tool_call_parser": tool_call_parser,
            "reasoning_parser": reasoning_parser,
            "response_template": dict(response_template),
        }
        self._special_tokens = dict(special_tokens)
        self._images_of_results: bool | None = None
        self._has_failed = False  # whether an invented conversation has taken too long
        if is_isolated:
            self._template = TemplateProcess(source, uri, file)
        else:
            from service.text.sandbox import SandboxedTemplate  # with Jinja, which only its process needs otherwise

            self._template = SandboxedTemplate(source, uri, file)

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        """Compile it again in the process that it is sent to, which is isolated."""
        uri, file = self._place
        compile_again = partial(
            type(self), uri=uri, file=file, defaults=self._defaults, variants=self._variants, **self._parsers
        )
        # What has been detected need not be detected there again.
        known = {"format": self.format} if "format" in vars(self) else {}
        return compile_again, (self.source, self._special_tokens), known

    def wait(self) -> None:
        """Wait until the template is compiled and has been tried with a tool, so that no request waits for that.

        Raises:
            MalformedCheckpoint: it does not compile.
        """
        try:
            assert self._template.variables is not None
        except TemplateFailed as error:
            raise MalformedCheckpoint(*self._place, f"the chat template {error.reason}") from error
        for variant in self._variants.values():
            variant.wait()
        _ = self.format

    def chosen(self, *, has_tools: bool, has_documents: bool) -> "ChatTemplate":
        """Return the checkpoint's template for a chat with or without tools and documents."""
        for name, is_for_it in ((TOOL_USE, has_tools), (RAG, has_documents)):
            if is_for_it and name in self._variants:
                return self._variants[name]
        return self

    @property
    def tool_format(self) -> Format | None:
        """How the model calls tools; None if no template of the checkpoint writes them."""
        return self.format if self.format.calls else None

    @cached_property
    def format(self) -> Format:
        """How the model writes its answers; without calls if no template of the checkpoint writes tools."""
        template = self._variants.get(TOOL_USE, self)
        sources = "\n".join(each.source for each in (self, *self._variants.values()))

        def render(messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool) -> str:
            if template.reads_parts_alone:
                messages = [{**turn, "content": _as_parts(turn["content"])} for turn in messages]
            return template._tried(messages, add_generation_prompt)

        return detected(render, sources, has_tools=template._offer is not None, **self._parsers)

    @cached_property
    def _offer(self) -> str | None:
        """The first of `OFFERS` by which a tool comes into the prompt; None if it does by none."""
        name = "offered_tool"
        function = {"name": name, "description": "d", "parameters": {"type": "object", "properties": {}}}
        messages = [{"role": "user", "content": "a"}]
        if self.reads_parts_alone:
            messages = [turn | {"content": _as_parts(turn["content"])} for turn in messages]
        for offer in OFFERS:
            if not re.search(rf"\b{XML_TOOLS if offer == XML_TOOLS else TOOLS}\b", self.source):
                continue
            try:
                if name in self._tried(messages, tools=[{"type": "function", "function": function}], offer=offer):
                    return offer
            except InvalidParameter:
                # It fails with this conversation; what it does with tools in others is not known.
                return offer
        return None

    @cached_property
    def reads_reasoning(self) -> bool:
        """Whether it reads an earlier answer's thinking as `reasoning` too, as few templates do."""
        return re.search(r"""\.reasoning\b|["']reasoning["']""", self.source) is not None

    @property
    def reads_documents(self) -> bool:
        """Whether it writes the documents of a request."""
        return "documents" in self._template.variables

    @property
    def knows_developer(self) -> bool:
        """Whether it has a place for the role `developer`, the newer name of the system's."""
        return "developer" in self.source

    @cached_property
    def joins_arguments(self) -> bool:
        """Whether it writes the arguments of earlier calls as they are, as DeepSeek's do, so that they must be text."""
        if "tojson" not in self.source or "arguments" not in self.source:
            return "tojson" not in self.source

        def takes(arguments: Any) -> bool:
            function = {"name": CALLED, "arguments": arguments}
            call = {"id": CALL_ID, "type": "function", "function": function}
            messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
            try:
                self._tried(messages, joins_arguments=False)
            except InvalidParameter:
                return False
            return True

        return not takes({"a": 1}) and takes('{"a": 1}')

    @property
    def has_thinking(self) -> bool:
        """Whether the model writes its thinking before an answer, between tags or in a channel."""
        return bool(self.format.thinking) or self.format.has_headers

    @cached_property
    def variables(self) -> frozenset[str]:
        """The variables that the template reads and a request may set."""
        return self._template.variables - ARGUMENTS - self._special_tokens.keys()

    @cached_property
    def takes_late_system(self) -> bool:
        """Whether a system's message may come after others, and is written there."""
        mark = "late system message"
        roles = ("system", "user", "system", "assistant", "user")
        messages = [{"role": role, "content": mark if i == 2 else "a"} for i, role in enumerate(roles)]
        try:
            return mark in self._tried(messages)
        except InvalidParameter:
            return False

    @cached_property
    def reads_parts(self) -> bool:
        """Whether the content of a message may be a list of parts, which it writes as it writes a text."""
        mark = "a plain text"
        contents = mark, [{"type": "text", "text": mark}]
        try:
            texts = {self._tried([{"role": "user", "content": content}]) for content in contents}
        except InvalidParameter:
            return self.reads_parts_alone
        return len(texts) == 1 or self.reads_parts_alone

    @cached_property
    def writes_text_arguments(self) -> bool:
        """Whether arguments of an earlier call that are a text are written as they are, rather than quoted."""
        mark = '{"cut": "in'
        try:
            return self.joins_arguments or mark in self._render_call(mark, "")
        except InvalidParameter:
            return False

    @cached_property
    def writes_calls(self) -> bool:
        """Whether earlier calls are written; true of a template that refuses them by itself."""
        try:
            text = self._render_call({}, "")
        except InvalidParameter:
            return True
        return CALLED in text or CALL_ID in text

    @cached_property
    def writes_results(self) -> bool:
        """Whether messages of tools are written; true of a template that refuses them by itself."""
        mark = "a result"
        try:
            return mark in self._render_call({}, mark)
        except InvalidParameter:
            return True

    def writes_images_of_results(self, placeholder: str) -> bool:
        """Whether an image in a message of a tool is written, beside its text.

        Args:
            placeholder: what it writes for an image.
        """
        if self._images_of_results is None:
            mark = "a result"
            try:
                plain = self._render_call({}, mark)
                shown = self._render_call({}, [{"type": "image"}, {"type": "text", "text": mark}])
            except InvalidParameter:
                self._images_of_results = False
            else:
                self._images_of_results = mark in shown and shown.count(placeholder) == plain.count(placeholder) + 1
        return self._images_of_results

    def _render_call(self, arguments: Any, result: str | list[dict[str, str]]) -> str:
        function = {"name": CALLED, "arguments": arguments}
        call = {"id": CALL_ID, "type": "function", "function": function}
        messages = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": result, "tool_call_id": CALL_ID, "name": CALLED},
        ]
        if self.reads_parts_alone:
            messages = [turn | {"content": _as_parts(turn["content"])} for turn in messages]
        return self._tried(messages)

    @cached_property
    def reads_parts_alone(self) -> bool:
        """Whether the content of a message must be a list of parts, as templates of vision models have it."""
        if not re.search(r"""\[["']type["']\]|\.type\b""", self.source):
            return False
        mark = "a plain text"
        try:
            return mark not in self._tried([{"role": "user", "content": mark}])
        except InvalidParameter:
            return True

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        documents: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """Return the prompt of a conversation, special tokens included: encode it without adding them again.

        Args:
            messages: the conversation.
            tools: what the model may call.
            documents: what it may answer from.
            add_generation_prompt: whether the prompt ends with the beginning of an answer.
            continue_final_message: whether it ends with the text of the last message, for the model to go on with.
            variables: values for names of `variables`.

        Raises:
            InvalidParameter: the template rejects the messages, or cannot render them.
            TemplateFailed: it has exceeded a limit of its process.
        """
        if not continue_final_message:
            return self._render(messages, add_generation_prompt, tools, documents, variables)
        # A mark at the end of the last message shows where the template has put that end. As in transformers, there is
        # a space behind it, so that a template that cuts space off texts does so here too.
        mark = secrets.token_hex(16)
        content = messages[-1].get("content", "")
        turns = [*messages[:-1], {**messages[-1], "content": marked(content, f"{mark} ")}]
        before, end, after = self._render(turns, add_generation_prompt, tools, documents, variables).rpartition(mark)
        if not end or _last_text(content).strip() not in before:
            message = (
                "The model's chat template does not write the text of the last message, so it cannot be continued."
            )
            raise InvalidParameter(message, param="continue_final_message")
        return before if after.startswith(" ") else before.rstrip()

    def _tried(self, messages: Sequence[Mapping[str, Any]], *arguments: Any, **options: Any) -> str:
        """Return what `_render` does of an invented conversation.

        Once one has taken too long, no further one is rendered, since each would hold up a start or a request for as
        long.

        Raises:
            InvalidParameter: the template refuses it, or has taken too long.
        """
        if self._has_failed:
            raise InvalidParameter("The chat template has taken too long before.", param="messages")
        try:
            return self._render(messages, *arguments, **options)
        except TemplateFailed as error:
            self._has_failed = True
            raise InvalidParameter(error.message, param=error.param) from error

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
        documents: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] = MappingProxyType({}),
        *,
        offer: str | None = None,
        joins_arguments: bool | None = None,
    ) -> str:
        if self.joins_arguments if joins_arguments is None else joins_arguments:
            messages = [_with_text_arguments(message) for message in messages]
        offered: Mapping[str, Any] = {}
        if tools:
            offer = offer or self._offer
            offered = {XML_TOOLS: list(tools)} if offer == XML_TOOLS else {}
            messages = _with_tools_of_system(messages, tools) if offer == OF_SYSTEM else messages
        return self._template.render(
            {
                **self._defaults,
                **variables,
                **self._special_tokens,
                **offered,
                "messages": list(messages),
                "tools": list(tools) or None,
                "documents": list(documents) or None,
                "add_generation_prompt": add_generation_prompt,
            }
        )


def marked(content: str | list[dict[str, str]], mark: str) -> str | list[dict[str, str]]:
    """Return a content with a mark at the end of its last text."""
    if isinstance(content, str):
        return f"{content}{mark}"
    last = max((i for i, part in enumerate(content) if "text" in part), default=None)
    if last is None:
        return [*content, {"type": "text", "text": mark}]
    part = content[last]
    return [*content[:last], {**part, "text": f"{part['text']}{mark}"}, *content[last + 1 :]]


def _as_parts(content: str | list[dict[str, str]]) -> list[dict[str, str]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _with_tools_of_system(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return a chat whose first message is the system's and has the tools' functions as a text."""
    system, rest = {"role": "system", "content": ""}, list(messages)
    if rest and rest[0]["role"] == "system":
        system, rest = dict(rest[0]), rest[1:]
    return [system | {"tools": json.dumps([tool["function"] for tool in tools], ensure_ascii=False)}, *rest]


def _last_text(content: str | list[dict[str, str]]) -> str:
    if isinstance(content, str):
        return content
    return next((part["text"] for part in reversed(content) if "text" in part), "")


def _with_text_arguments(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message whose calls have texts as arguments."""
    calls = [
        {**call, "function": {**call["function"], "arguments": as_text(call["function"]["arguments"])}}
        for call in message.get("tool_calls") or ()
    ]
    return {**message, "tool_calls": calls} if calls else message


def as_text(arguments: Any) -> str:
    """Return the arguments of a call, an object or its JSON already, as JSON."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
