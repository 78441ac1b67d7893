"""Tokens per second of greedy generation, against transformers, on a GPT-2 of 124M's size with random weights.

    .venv/bin/python tests/benchmarks/generate.py [--threads 2] [--new 64] [--repeats 5]

One prompt of 32 ids, float32; the two take turns in one process and must give the same ids. Medians are printed.
"""

import argparse
import statistics
import tempfile
import time

import torch
import transformers

from minhub_py import generate, gpt2, gpt2_from_pretrained, save_pretrained

PROMPT = list(range(100, 132))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(gpt2(), folder)
        ours = gpt2_from_pretrained(folder)
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()

        def of_ours() -> list[int]:
            return generate(ours, [PROMPT], args.new, temperature=0, eos_id=None)[0]

        def of_theirs() -> list[int]:
            ids = torch.tensor([PROMPT])
            count = {"max_new_tokens": args.new, "min_new_tokens": args.new, "pad_token_id": 0}
            return theirs.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **count)[0, 32:].tolist()

        speeds: dict[str, list[float]] = {"minhub_py": [], "transformers": []}
        made = {}
        for repeat in range(args.repeats + 1):  # the first warms up
            for name, run in {"minhub_py": of_ours, "transformers": of_theirs}.items():
                start = time.perf_counter()
                made[name] = run()
                if repeat:
                    speeds[name].append(args.new / (time.perf_counter() - start))
        if made["minhub_py"] != made["transformers"]:
            raise SystemExit("the two gave different ids")
        medians = {name: statistics.median(found) for name, found in speeds.items()}
        for name, speed in medians.items():
            print(f"{name:14}{speed:8.1f} tokens/s")
        print(f"{'ratio':14}{medians['minhub_py'] / medians['transformers']:8.2f}")


if __name__ == "__main__":
    main()
