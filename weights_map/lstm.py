"""Weight table of the LSTM: PyTorch's names, with or without the underscore of private attributes."""

from weights_map.engine import Row, Table, same, tie

table = Table(
    model_type="lstm",
    rows=(
        Row("embedding.weight", "embedding.weight", same),
        Row("lstm.weight_ih_l{}", "lstm.weight_ih_l{}", same),
        Row("lstm.weight_hh_l{}", "lstm.weight_hh_l{}", same),
        Row("lstm.bias_ih_l{}", "lstm.bias_ih_l{}", same),
        Row("lstm.bias_hh_l{}", "lstm.bias_hh_l{}", same),
        Row("head.weight", "head.weight", tie("embedding.weight")),
        Row("head.bias", "head.bias", same),
    ),
    # christianb93's MLLM, and PyTorch's word language model example
    spellings=(
        ("_embedding.", "embedding."),
        ("_lstm.", "lstm."),
        ("_out.", "head."),
        ("encoder.", "embedding."),
        ("rnn.", "lstm."),
        ("decoder.", "head."),
    ),
)
