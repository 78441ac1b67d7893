"""Settings of small models, and a tokenizer of a few words."""

from references import VOCABULARY
from tokenizers import Tokenizer, models, pre_tokenizers

LSTM = {"vocab_size": VOCABULARY, "embedding_size": 16, "hidden_size": 24, "num_layers": 3}
SINUSOIDAL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 36,
    "max_position_embeddings": 64,
}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "d_kv": 8,
    "d_ff": 40,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
}


def tokenizer() -> Tokenizer:
    words = ["<unk>", *"the a cat dog sat ran on in mat house and . , !".split()]
    tokenizer = Tokenizer(
        models.WordLevel({word: id for id, word in enumerate(words)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer
