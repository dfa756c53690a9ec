"""The tables of docs/from_vllm.md: what becomes of each flag of `vllm serve`."""

from collections.abc import Iterable, Mapping

from service.command_line import vllm
from service.settings import Settings


def vllm_tables() -> str:
    """Return the tables: renamed flags, those that are always on, those without effect, those that are refused."""
    own = [f"`--{name.replace('_', '-')}`" for name in vllm.SAME_NAMES]
    renamed = [
        (
            ", ".join(f"`{vllm.dashed(name)}`" for name in flag.names),
            f"`--{flag.setting.replace('_', '-')}`",
            flag.difference,
        )
        for flag in vllm.RENAMED
    ]
    renamed += [
        ("`--revision`", "MODEL", "`org/name@revision`"),
        ("`--tokenizer-revision`", "`--tokenizer-uri`", "`org/name@revision`"),
    ]
    assert set(vllm.SAME_NAMES) <= set(Settings.model_fields)
    refused = {name: refusal.reason for name, refusal in vllm.REFUSED.items()}
    return "\n".join(
        [
            f"The same here: {', '.join(own)}.",
            "",
            *_table(("vLLM", "here", ""), renamed),
            "",
            "Always on; the flag is accepted, and its opposite refused:",
            "",
            *_table(("flag", "what holds"), _rows(vllm.ALWAYS_ON)),
            "",
            "Refused, with what to do instead:",
            "",
            *_table(("flag", "instead"), _rows({**refused, **vllm.NEVER_ON})),
            "",
            "Accepted, and without effect:",
            "",
            *_table(("flag", "what holds"), _rows({**vllm.NO_EFFECT, **vllm.IGNORED})),
        ]
    )


def _rows(meanings: Mapping[str, str]) -> Iterable[tuple[str, ...]]:
    return [(f"`{vllm.dashed(name)}`", meaning) for name, meaning in sorted(meanings.items())]


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [f"| {' | '.join(cell.replace('|', '\\|') for cell in row)} |" for row in rows]
