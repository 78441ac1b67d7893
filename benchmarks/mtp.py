"""Multi-token prediction: acceptance of a small trained head, and time with right and with wrong
drafts.

    .venv/bin/python benchmarks/mtp.py train TEXT [--steps 400]
    .venv/bin/python benchmarks/mtp.py time [--models Qwen3.5-0.8B,Qwen3.5-2B] [--quantize int8]

train: a Qwen 3.5 with four small layers and its head, jointly on a text file's characters;
then acceptance rates.
time: models of published sizes with random weights. The layers add nothing to the residual stream,
so that the head can be built to be always right; with a random head, it is nearly always wrong. The
layers are computed in both cases. The times are processor times of one thread, which other programs
on the machine change less than wall times.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from machine import announce

from minhub_py import from_config, generate
from minhub_py.inference.quantize import quantize
from minhub_py.inference.speculative import PredictionHead
from minhub_py.models.config import changed
from minhub_py.models.registry import preset

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "max_position_embeddings": 1024,
    "mtp_layers": 1,
    "tie_word_embeddings": True,
}


def train(path: Path, steps: int) -> None:
    text = path.read_text(encoding="utf-8")
    characters = sorted(set(text))
    ids = torch.tensor([characters.index(character) for character in text])
    training, held_out = ids[: len(ids) * 9 // 10], ids[len(ids) * 9 // 10 :].tolist()
    torch.manual_seed(0)
    model: Any = from_config("qwen3_5_text", vocab_size=len(characters), **SMALL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for step in range(steps):
        starts = torch.randint(len(training) - 66, (8,))
        batch = torch.stack([training[start : start + 66] for start in starts.tolist()])
        hidden = model.hidden(batch[:, :64])
        predicted, _ = model.predict(batch[:, 1:65], hidden)
        losses = [
            F.cross_entropy(logits.flatten(0, 1), targets.flatten())
            for logits, targets in (
                (model.logits(hidden), batch[:, 1:65]),
                (predicted, batch[:, 2:66]),
            )
        ]
        optimizer.zero_grad()
        (losses[0] + 0.5 * losses[1]).backward()
        for group in optimizer.param_groups:
            group["lr"] = 4e-3 * min(1, (step + 1) / 50) * (1 - step / steps)
        optimizer.step()
        if step % 100 == 99:
            print(
                f"step {step + 1}: loss {losses[0].item():.3f}, of the head {losses[1].item():.3f}",
                flush=True,
            )
    model.eval()
    prompts = [held_out[start : start + 100] for start in range(0, 10_000, 2_000)]
    for temperature in (0, 0.8):
        for most in (1, 2, 3, 8):
            drafts = PredictionHead(model)
            settings = {"temperature": temperature, "seed": 0, "eos_id": None}
            drafted = generate(model, prompts, 100, draft=drafts, speculate=most, **settings)
            same = drafted == generate(model, prompts, 100, **settings)
            print(
                f"temperature {temperature}, up to {most} drafts: {drafts.accepted} of"
                f" {drafts.proposed} accepted ({drafts.accepted / drafts.proposed:.2f}), same"
                f" tokens: {same}",
                flush=True,
            )


@torch.no_grad()
def random_model(name: str, right: bool) -> Any:
    torch.manual_seed(0)
    architecture, config = preset(f"Qwen/{name}")
    model: Any = architecture.new(changed(config, {"mtp_layers": 1})).eval()
    for block in [*model.layers, *model.mtp.layers]:
        for path, parameter in block.named_parameters():
            if any(part in path for part in ("o_proj", "out_proj", "down_proj")):
                parameter.zero_()
    if right:
        C = model.mtp.fc.out_features
        model.mtp.fc.weight.copy_(torch.cat((torch.eye(C), torch.zeros(C, C)), dim=1))
    return model


def seconds(model: Any, most: int) -> tuple[float, float]:
    """Processor seconds per new token, without the prompt; accepted tokens per proposed token."""
    prompt, drafts = list(range(100, 132)), PredictionHead(model) if most else None
    times = []
    for count in (1, 49):
        start = time.process_time()
        generate(model, [prompt], count, temperature=0, eos_id=None, draft=drafts, speculate=most)
        times.append(time.process_time() - start)
    rate = drafts.accepted / max(drafts.proposed, 1) if drafts else 0.0
    return (times[1] - times[0]) / 48, rate


def measure(names: list[str], kind: str, repeats: int) -> None:
    for name in names:
        for right in (True, False):
            model = random_model(name, right)
            quantize(model, kind)
            runs: dict[int, list[tuple[float, float]]] = {most: [] for most in (0, 1, 2, 3, 8)}
            for _ in range(repeats):
                for most, results in runs.items():  # interleaved
                    results.append(seconds(model, most))
            plain = [time for time, _ in runs[0]]
            head = "right" if right else "wrong"
            print(f"{name}, {kind}, {head} head: {1e3 * statistics.median(plain):.1f} ms per token")
            for most in (1, 2, 3, 8):
                ratio = statistics.median(
                    p / time for p, (time, _) in zip(plain, runs[most], strict=True)
                )
                print(
                    f"    up to {most} drafts: {ratio:.2f} x as fast, {runs[most][0][1]:.2f}"
                    " accepted",
                    flush=True,
                )
            del model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, dest="command")
    training = commands.add_parser("train")
    training.add_argument("text", type=Path)
    training.add_argument("--steps", type=int, default=400)
    timing = commands.add_parser("time")
    timing.add_argument("--models", default="Qwen3.5-0.8B,Qwen3.5-2B")
    timing.add_argument("--quantize", default="int8")
    timing.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.command == "train":
        train(args.text, args.steps)
    else:
        measure(args.models.split(","), args.quantize, args.repeats)


if __name__ == "__main__":
    announce()
    main()
