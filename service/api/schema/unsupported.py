"""The fields that clients know from OpenAI or vLLM and that are not served here, with the values that ask for nothing.

A field with such a value is obeyed by doing nothing; with any other it is refused by name. Null asks for nothing.
Source: https://platform.openai.com/docs/api-reference/chat/create, .../completions/create,
https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html (extra parameters)
"""

from collections.abc import Mapping
from typing import Any

NeutralValues = Mapping[str, tuple[Any, ...]]

_ONE = (1, 1.0)

_VLLM: NeutralValues = {
    "bad_words": ([],),
    "cache_salt": (),
    "detokenize": (True,),
    "guided_choice": (),
    "guided_decoding_backend": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_whitespace_pattern": (),
    "include_stop_str_in_output": (False,),
    "kv_transfer_params": (),
    "length_penalty": _ONE,
    "logits_processors": ([],),
    "request_id": (),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "structured_outputs": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
}

CHAT: NeutralValues = {
    **_VLLM,
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "audio": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "include_reasoning": (True,),
    "metadata": ({},),
    "mm_processor_kwargs": (),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True, False),  # about tools, of which there are none
    "prediction": (),
    "prompt_cache_key": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "safety_identifier": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tool_choice": ("none",),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}

COMPLETIONS: NeutralValues = {
    **_VLLM,
    "add_special_tokens": (True,),
    "prompt_embeds": (),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
}

STREAM_OPTIONS: NeutralValues = {"continuous_usage_stats": (False,), "include_obfuscation": (False,)}

# What the official client sends back of an answer that it got.
MESSAGE: NeutralValues = {"annotations": ([],), "audio": (), "function_call": (), "refusal": ()}


def is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Tell whether a field's value asks for nothing; True is not 1 here."""
    return value is None or any(type(value) is type(other) and value == other for other in neutral)
