"""Speed of two weight layouts: (out, in) as in nn.Linear, and (in, out) read through a transposed
view.

    .venv/bin/python benchmarks/layout.py [--threads 2] [--repeats 20]

Uses twelve matrices of 768 × 3072, too large for the processor's cache, and prints medians in
milliseconds of the two layouts in turn. float16 is skipped at 512 positions, where the view takes
minutes.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{'':22}{'(out, in)':>12}{'view':>12}")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        views = [torch.randn(768, 3072).to(dtype).t() for _ in range(12)]
        copies = [view.contiguous() for view in views]
        for positions in (1, 8) if dtype == torch.float16 else (1, 8, 512):
            x = torch.randn(1, positions, 768).to(dtype)
            times: dict[str, list[float]] = {"copies": [], "views": []}
            for _ in range(args.repeats):
                for name, weights in {"copies": copies, "views": views}.items():
                    times[name].append(seconds(x, weights))
            copy, view = (1000 * statistics.median(times[name]) for name in ("copies", "views"))
            label = f"{str(dtype).removeprefix('torch.')}, {positions}"
            print(f"{label:22}{copy:9.2f} ms{view:9.2f} ms", flush=True)


@torch.inference_mode()
def seconds(x: torch.Tensor, weights: list[torch.Tensor]) -> float:
    """Time of one product with each weight, in seconds."""
    start = time.perf_counter()
    for weight in weights:
        F.linear(x, weight)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
