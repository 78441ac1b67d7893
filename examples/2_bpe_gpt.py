"""BPE -> GPT: tokens learnt from the text, a small GPT learnt on them, and how to compare it with one on characters.

The idea. Characters make long sequences, words an endless vocabulary. *Byte-pair encoding* lies between: begin with
bytes, and join the most frequent pair of neighbours to a new token, again and again. Frequent words become one token,
rare ones a few, and as any text is bytes, none is unknown. A model's loss is a mean over tokens, and a longer token is
harder to guess. So losses per token of different tokenizers cannot be compared. Per character they can:

    nats per character = nats per token / characters per token

Sources. Gage (1994) for byte pairs; Sennrich et al. (2016) for words of a language model; Radford et al. (2018) for the
GPT, and (2019) for bytes, in GPT-2; Mielke (2019) on comparing models over different vocabularies.

    python examples/2_bpe_gpt.py input.txt

You see the first pairs that are joined, a line of the text cut into ever fewer tokens, and another script that survives
all the same. Then two models of the same sizes, trained by as many steps of as many tokens: per token the one on
characters seems far better. Per character it is not; not least as tokens let it read more text in the same time.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from minhub_py import generate, train
from minhub_py.files.tokenizer import train_byte_level_bpe

BATCH = 16
FOREIGN = "Grüße, 世界!"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--vocab-size", type=int, default=512)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--context", type=int, default=64, help="tokens that the model sees")
    args = parser.parse_args()

    text = args.text.read_text(encoding="utf-8")
    cut = int(len(text) * 0.9)  # where `train` cuts too: a tokenizer must not learn from what measures
    line = max(text[cut:].splitlines()[:40], key=len)[:60]

    print("A held-out line, cut by tokenizers of more and more tokens:")
    for size in sorted({257, (257 + args.vocab_size) // 2, args.vocab_size}):  # 256 bytes, <|endoftext|>, and pairs
        bpe = train_byte_level_bpe([text[:cut]], size)
        ids = bpe.encode(line).ids
        # A token may be a part of a character, which shows as �.
        print(f"  {size:5} tokens: {len(ids):3} for {len(line)} characters  {'|'.join(bpe.decode([id]) for id in ids)}")
    pairs = json.loads(bpe.to_str())["model"]["merges"][:12]
    print("The first pairs joined:", *(repr(bpe.decode([bpe.token_to_id("".join(pair))])) for pair in pairs))
    ids = bpe.encode(FOREIGN).ids
    print(f"No text is unknown: {FOREIGN!r} is {len(ids)} tokens, and comes back as {bpe.decode(ids)!r}")

    sizes = {"family": "gpt2", "layers": args.layers, "width": args.width, "context": args.context}
    how = {"steps": args.steps, "batch": BATCH, "learning_rate": 3e-3, "dropout": 0.0, "evaluate_tokens": 2**15}
    tokens = args.steps * BATCH * args.context
    print(f"\n{args.layers} layers of width {args.width}, {args.steps} steps of {BATCH} x {args.context} tokens:")
    print("  tokenizer   vocabulary  characters read  characters/token  nats/token  nats/character")
    samples = {}
    with tempfile.TemporaryDirectory() as folder:  # name a folder of your own to keep the runs: `minhub compare`
        (Path(folder) / "tokenizer").mkdir()
        bpe.save(f"{folder}/tokenizer/tokenizer.json")
        for name, tokenizer in (("characters", "characters"), ("BPE", f"{folder}/tokenizer")):
            run = train(args.text, f"{folder}/{name}", tokenizer=tokenizer, **sizes, **how)
            read = tokens * run.characters_per_token
            per_character = run.best_loss / run.characters_per_token
            print(
                f"  {name:10}  {run.tokenizer.get_vocab_size():10}  {read:15,.0f}  {run.characters_per_token:16.3f}  "
                f"{run.best_loss:10.3f}  {per_character:14.3f}",
                flush=True,
            )
            samples[name] = write_on(run, " ".join(line.split()[:3]), 160)
    for name, sample in samples.items():
        print(f"\n{name}:\n{sample}")


def write_on(run: Any, prompt: str, length: int) -> str:
    """The prompt, and about `length` characters that the best model of the run writes on."""
    ids = run.tokenizer.encode(prompt).ids
    [new] = generate(run.model, [ids], round(length / run.characters_per_token), temperature=0.8, seed=1)
    return f"[{prompt}]{run.tokenizer.decode(new)}"


if __name__ == "__main__":
    main()
