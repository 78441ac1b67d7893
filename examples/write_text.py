"""The Python interface on one page: load, encode, generate, stream, score. Needs no network.

python examples/write_text.py
"""

from minhub_py import (
    decode_stream,
    from_pretrained,
    generate,
    score,
    stream,
    tokenizer_from_pretrained,
)


def main() -> None:
    name = "minhub/shakespeare-gpt2"  # or a repository of the Hub, such as "gpt2", or a folder
    model = from_pretrained(name)
    tokenizer = tokenizer_from_pretrained(name)

    prompts = ["ROMEO:", "To be, or not to be", "O"]  # one batch, of different lengths
    ids = [tokenizer.encode(prompt).ids for prompt in prompts]
    for prompt, new in zip(
        prompts, generate(model, ids, 40, temperature=0.8, top_k=20, seed=1), strict=True
    ):
        print(repr(prompt + tokenizer.decode(new)))

    print("\nStreamed:")
    for piece in decode_stream(tokenizer, stream(model, ids[0], 200, temperature=0.8, seed=2)):
        print(piece, end="", flush=True)

    print("\n\nPerplexity per character:")
    for line in ("What say you to my lord?", "Wht sy y t my lrd?", "The GPU is too hot."):
        [logprobs] = score(model, [tokenizer.encode(line).ids])
        print(f"{(-logprobs.mean()).exp():8.2f}  {line}")


if __name__ == "__main__":
    main()
