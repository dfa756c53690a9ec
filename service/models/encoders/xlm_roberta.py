"""XLM-RoBERTa, RoBERTa and CamemBERT: bge-m3, multilingual-e5, bge-reranker.

They are BERT with other names of classes, and with positions that begin after the id of the padding token.
Source: Liu et al. 2019, arXiv:1907.11692; Conneau et al. 2020, arXiv:1911.02116; transformers
`models/xlm_roberta/modeling_xlm_roberta.py` (create_position_ids_from_input_ids).
"""

from service.models.config import HubConfig
from service.models.encoders.bert import read_bert
from service.models.encoders.config import EncoderConfig, VectorConfig

DEFAULT_PADDING_ID = 1


def read_config(config: HubConfig, vector: VectorConfig) -> EncoderConfig:
    """Read a `config.json` of model_type `xlm-roberta`, `roberta` or `camembert`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    stated = config.values.get("pad_token_id")
    is_zero = type(stated) is int and stated == 0
    padding_id = 0 if is_zero else config.optional_int("pad_token_id", DEFAULT_PADDING_ID)
    return read_bert(config, vector, first_position=padding_id + 1)
