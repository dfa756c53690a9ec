"""Makes the reference logits of families that transformers does not have, with Levanter.

python -m tests.parity.make_levanter_references
"""

from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from haliax import Axis
from haliax.state_dict import from_torch_compatible_state_dict, to_torch_compatible_state_dict

from service.checkpoint.levanter import levanter_config, one_device_mesh
from tests.levanter_run import implicit_promotion, levanter_logits
from tests.parity.cases import VOCAB_SIZE
from tests.parity.family_cases import FAMILY_CASES, LEVANTER_TYPES, draw


def main() -> None:
    """Write one file a case."""
    for case in (case for case in FAMILY_CASES if case.model_type in LEVANTER_TYPES):
        config = levanter_config(case.hub_config)
        with implicit_promotion(), jax.set_mesh(one_device_mesh(config)):
            initial: Any = config.build(Axis("vocab", VOCAB_SIZE), key=jax.random.PRNGKey(0))
            shapes = {name: array.shape for name, array in to_torch_compatible_state_dict(initial).items()}
            tensors = {name: jnp.asarray(draw(case.model_type, name, shape)) for name, shape in shapes.items()}
            logits = levanter_logits(from_torch_compatible_state_dict(initial, tensors), case.token_ids)
        names = np.array([(name, " ".join(map(str, shape))) for name, shape in shapes.items()])
        np.savez_compressed(case.reference_path, logits=logits, shapes=names, levanter=version("marin-levanter"))
        print(f"{case.name:24} {logits.shape} std {logits.std():.3f}")


if __name__ == "__main__":
    main()
