"""MPNet: BERT without types of tokens, with positions of RoBERTa and a bias of scores by distance.

Source: Song et al. 2020, arXiv:2004.09297; transformers `models/mpnet/modeling_mpnet.py`, where positions begin after
id 1 whatever `pad_token_id` says.
"""

from dataclasses import replace

from service.models.config import HubConfig
from service.models.encoders.bert import read_bert
from service.models.encoders.config import EncoderConfig, EncoderNames, VectorConfig

NAMES = EncoderNames(
    query="attention.attn.q",
    key="attention.attn.k",
    value="attention.attn.v",
    output="attention.attn.o",
    attention_norm="attention.LayerNorm",
)
FIRST_POSITION, USUAL_BUCKETS = 2, 32


def read_config(config: HubConfig, vector: VectorConfig) -> EncoderConfig:
    """Read a `config.json` of model_type `mpnet`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    read = read_bert(config, vector, first_position=FIRST_POSITION)
    # The library computes with 32 buckets whatever the table's size, and only a table of 32 rows fits them.
    config.refuse_unless("relative_attention_num_buckets", USUAL_BUCKETS)
    return replace(read, num_token_types=0, num_position_buckets=USUAL_BUCKETS, names=NAMES)
