"""The names of modules in a `quantization_config`, as patterns of whole names of modules."""

import fnmatch
import re

LM_HEAD = "lm_head"
_GLOB = re.compile(r"[*?\[]")


def inside(name: str) -> str:
    """Return the pattern of a module and of all modules in it; the name may be a glob.

    Source: NVIDIA ModelOpt (`exclude_modules`): globs.
    """
    # The translation of a glob ends with an anchor of its own.
    module = fnmatch.translate(name).removesuffix(r"\Z").removesuffix(r"\z") if _GLOB.search(name) else re.escape(name)
    return rf"{module}(\..*)?"


def ignored(name: str) -> str:
    """Return the pattern of an entry of compressed-tensors' `ignore`: a name, or `re:` and how names begin.

    Source: compressed-tensors `utils/match.py` (_match_name)
    """
    return rf"(?:{name.removeprefix('re:')}).*" if name.startswith("re:") else inside(name)


def at_either_end(name: str) -> str:
    """Return the pattern of modules that begin with a name, as a pattern up to a dot, or end with it.

    Source: transformers `quantizers/quantizers_utils.py` (should_convert_module)
    """
    return rf"(?:{name})(?:(?<=\.).*|\..*)?|.*{re.escape(name)}"


def anywhere(name: str) -> str:
    """Return the pattern of modules of which a name is the beginning, the end, or a part between dots.

    Source: AutoAWQ `utils/module.py` (exclude_layers_to_not_quantize), which looks for it anywhere
    """
    return rf"{at_either_end(name)}|(.*\.)?{re.escape(name)}(\..*)?"


def is_pattern(name: str) -> bool:
    """Return whether a regular expression can be read."""
    try:
        re.compile(name)
    except re.error:
        return False
    return True
