"""Makes the reference logits of families that transformers does not have, with Levanter.

python -m tests.parity.make_levanter_references
"""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from haliax import Axis
from haliax.state_dict import from_torch_compatible_state_dict, to_torch_compatible_state_dict

from service.checkpoint.levanter import levanter_config, one_device_mesh
from service.checkpoint.levanter_unreleased import run_of_export
from service.models.registry import RUN
from tests.levanter_run import implicit_promotion, levanter_logits
from tests.parity.cases import VOCAB_SIZE
from tests.parity.family_cases import FAMILY_CASES, LEVANTER_TYPES, FamilyCase, draw
from tests.parity.levanter_newer import NeedsExplicitAxes, drawn_run, hero_logits


def main() -> None:
    """Write one file a case."""
    for case in (case for case in FAMILY_CASES if case.model_type in LEVANTER_TYPES):
        if case.name == "hero":
            logits, shapes = hero_reference(case)
            write(case, logits, shapes)
            continue
        config = levanter_config(case.hub_config)
        with implicit_promotion(), jax.set_mesh(one_device_mesh(config)):
            initial: Any = config.build(Axis("vocab", VOCAB_SIZE), key=jax.random.PRNGKey(0))
            shapes = {name: array.shape for name, array in to_torch_compatible_state_dict(initial).items()}
            tensors = {name: jnp.asarray(draw(case.model_type, name, shape)) for name, shape in shapes.items()}
            logits = levanter_logits(from_torch_compatible_state_dict(initial, tensors), case.token_ids)
        write(case, logits, shapes)


def hero_reference(case: FamilyCase) -> tuple[np.ndarray, dict[str, tuple[int, ...]]]:
    """Return the logits of Hero, and the shapes of the tensors of its export."""
    run = run_of_export("test", "hero", case.hub_config)[RUN]
    tree, named = drawn_run(run, VOCAB_SIZE, case.model_type)
    with implicit_promotion(), jax.set_mesh(one_device_mesh(NeedsExplicitAxes())):
        return hero_logits(run, tree, case.token_ids), {name: array.shape for name, array in named.items()}


def write(case: FamilyCase, logits: np.ndarray, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Write what a case is held to."""
    names = np.array([(name, " ".join(map(str, shape))) for name, shape in shapes.items()])
    np.savez_compressed(case.reference_path, logits=logits, shapes=names, levanter=version("marin-levanter"))
    print(f"{case.name:24} {logits.shape} std {logits.std():.3f}")


if __name__ == "__main__":
    main()
