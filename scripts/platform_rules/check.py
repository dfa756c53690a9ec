"""Hold every fact against every rule about it."""

from collections.abc import Iterable

from scripts.platform_rules.fact import Fact
from scripts.platform_rules.rules import RULES


def violations(facts: Iterable[Fact]) -> list[str]:
    """Return a sentence for each rule that a fact breaks."""
    return [
        f"{fact.origin}\n  breaks {rule.name}: {rule.says}\n  {rule.source}"
        for fact in facts
        for rule in RULES
        if rule.about == fact.kind and not rule.holds(fact)
    ]


def idle_rules(facts: Iterable[Fact]) -> set[str]:
    """Return the names of the rules that no fact is about."""
    kinds = {fact.kind for fact in facts}
    return {rule.name for rule in RULES if rule.about not in kinds}
