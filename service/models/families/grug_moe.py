"""The exports of two models of Levanter, which have one name and two versions: Snowball and Hero.

Source: Levanter `models/snowball.py` (GrugMoeHfConfig), `models/hero.py` (HeroConfig).
"""

from service.models.config import HubConfig
from service.models.description import DecoderConfig
from service.models.families.hero import read_hero
from service.models.families.snowball import read_snowball

VERSION = "grugmoe_artifact_schema_version"


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `grug_moe`.

    Raises:
        UnsupportedModel: a value is missing or malformed, or the recipe is another one.
    """
    config.refuse_unless("grugmoe_attention_mode", "production")
    config.refuse_unless(VERSION, 1, 2)
    config.refuse_unless("tie_word_embeddings", False)
    if config.values.get(VERSION) == 2:
        return read_hero(config, config.number("rope_theta"), {})
    config.refuse_unless("disable_pko", True)
    config.refuse_unless("disable_long_rope", True)
    return read_snowball(config, config.number("rope_theta", 10_000.0), {})
