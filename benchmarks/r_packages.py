"""minhubpy compared with other ways to run language models in R: equal numbers, seconds, memory and
lines of code.

    python benchmarks/r_packages.py [--sentences 100] [--layers 12] [--repeats 3]

Two tasks: the log-probability of each word in its sentence, and one embedding per sentence. The
models are random, in the shapes of GPT-2 and BERT base, with tokenizers trained on the sentences.
Each way runs in its own R process, with one thread; the last column counts the lines of its code in
PROGRAMS. Seconds are CPU seconds of R and its Python: the first ones load packages and model, the
others are the task, the best of the repetitions. Memory is the peak of both processes.

A way whose R packages are not installed is named. `RETICULATE_PYTHON` is the Python for reticulate,
with torch and transformers; pangoling 1.0.3 needs transformers below 5.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import psutil
import torch
from machine import announce

from minhub_py import from_config, gpt2, save_pretrained
from minhub_py.checkpoints.tokenizers.encoder_tokenizer import train_wordpiece
from minhub_py.checkpoints.tokenizers.tokenizer import train_byte_level_bpe

# Variables: folder, sentences, word and item (the word's sentence). The last value is the result.
PROGRAMS = {
    ("words", "minhubpy"): (
        """
library(minhubpy)
model <- from_pretrained(folder)
""",
        """
word_logprobs(model, word, by = item)
""",
    ),
    ("words", "pangoling"): (
        """
library(pangoling)
causal_preload(folder)
""",
        """
causal_words_pred(word, by = item, model = folder)
""",
    ),
    ("words", "pangoling, batches of 16"): (
        """
library(pangoling)
causal_preload(folder)
""",
        """
causal_words_pred(word, by = item, model = folder, batch_size = 16)
""",
    ),
    ("words", "reticulate"): (
        """
library(reticulate)
torch <- import("torch")
transformers <- import("transformers")
tokenizer <- transformers$AutoTokenizer$from_pretrained(folder)
model <- transformers$AutoModelForCausalLM$from_pretrained(folder)
""",
        """
scores <- lapply(split(word, item), function(words) {
  pieces <- paste0(c("", rep(" ", length(words) - 1)), words)
  ids <- lapply(pieces, function(piece) tokenizer$encode(piece, add_special_tokens = FALSE))
  all <- unlist(ids)
  with(torch$no_grad(), logits <- model(torch$tensor(list(as.list(all))))$logits)
  logprobs <- torch$log_softmax(logits[0], -1L)$numpy()
  picked <- c(NA, logprobs[cbind(seq_len(length(all) - 1), all[-1] + 1)])
  tapply(picked, rep(seq_along(ids), lengths(ids)), sum)
})
unlist(scores)
""",
    ),
    ("embeddings", "minhubpy"): (
        """
library(minhubpy)
model <- from_pretrained(folder)
""",
        """
text_embeddings(model, sentences)
""",
    ),
    ("embeddings", "reticulate"): (
        """
library(reticulate)
torch <- import("torch")
transformers <- import("transformers")
tokenizer <- transformers$AutoTokenizer$from_pretrained(folder)
model <- transformers$AutoModel$from_pretrained(folder)
""",
        """
rows <- lapply(split(sentences, ceiling(seq_along(sentences) / 16)), function(texts) {
  batch <- tokenizer(as.list(texts), padding = TRUE, return_tensors = "pt")
  with(torch$no_grad(), states <- do.call(model, py_to_r(batch$data))$last_hidden_state)
  mask <- batch$attention_mask$unsqueeze(-1L)
  (states$mul(mask)$sum(1L) / mask$sum(1L))$numpy()
})
do.call(rbind, rows)
""",
    ),
}
# Ways that this program does not run, and the reason.
NOT_RUN = {
    "text": "computes embeddings by reticulate and transformers, as the second embeddings row; it"
    " requires 20 packages of CRAN",
    "localLLM": "runs GGUF files by llama.cpp, whose library install_localLLM() downloads;"
    " benchmarks/compare.py measures llama.cpp itself",
    "relm": "its source was not available",
    "ellmer": "is a client of servers, such as minhub_serve(), and runs no model",
}
MEASURE = """
arguments <- commandArgs(TRUE)
input <- file("stdin", "r")
mark <- function(what) {{ cat("@", what, "\\n"); flush(stdout()); invisible(readLines(input, 1)) }}
options(pangoling.verbose = 0, minhubpy.quiet = TRUE)
folder <- arguments[[1]]
sentences <- readLines(arguments[[2]])
word <- unlist(strsplit(sentences, " "))
item <- rep(seq_along(sentences), lengths(strsplit(sentences, " ")))
mark("begin")
suppressMessages({{{setup}}})
task <- function() {{{code}}}
mark("loaded")
for (i in seq_len({repeats})) {{
  result <- suppressMessages(task())
  mark("done")
}}
writeBin(as.double(as.vector(result)), arguments[[3]])
"""


def main() -> None:
    """Write the models and the sentences, run each way, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    announce()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        texts = write_sentences(folder / "sentences.txt", arguments.sentences)
        words = sum(len(text.split()) for text in texts)
        print(f"{len(texts)} sentences, {words} words, {arguments.layers} layers of width 768")
        write_models(folder, texts, arguments.layers)
        print(f"{'task':11}{'way':26}{'load s':>8}{'task s':>8}{'MB':>7}{'lines':>7}  difference")
        expected: dict[str, np.ndarray] = {}
        for (task, way), (setup, code) in PROGRAMS.items():
            package = way.split(",")[0]
            attach = ["Rscript", "-e", f"library({package})"]
            if subprocess.run(attach, capture_output=True, check=False).returncode:
                print(f"{task:11}{way:26}not installed")
                continue
            load, seconds, memory, values = run(folder, task, setup, code, arguments.repeats)
            first = expected.setdefault(task, values)
            present = ~np.isnan(first)
            assert (np.isnan(values) == ~present).all(), "other values are missing"
            worst = np.abs(first[present] - values[present]).max()
            lines = len((setup + code).strip().replace("\n\n", "\n").splitlines())
            print(
                f"{task:11}{way:26}{load:8.1f}{seconds:8.2f}{memory / 2**20:7.0f}{lines:7}"
                f"  {worst:.0e}",
                flush=True,
            )
    for package, reason in NOT_RUN.items():
        print(f"Not run: {package} {reason}")


def write_sentences(path: Path, count: int) -> list[str]:
    """Sentences of 6 to 18 words from the README's vocabulary."""
    source = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    vocabulary = sorted({word.lower() for word in source.split() if word.isalpha()})
    chosen = random.Random(1)
    texts = [
        " ".join(chosen.choices(vocabulary, k=chosen.randint(6, 18))).capitalize() + "."
        for _ in range(count)
    ]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return texts


def write_models(folder: Path, texts: list[str], layers: int) -> None:
    """A random GPT-2 and a random BERT, with tokenizers."""
    torch.manual_seed(1)
    model = gpt2(n_layer=layers)
    save_pretrained(model, folder / "words", tokenizer=train_byte_level_bpe(texts, 1000))
    (folder / "words" / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "GPT2TokenizerFast", "eos_token": "<|endoftext|>"}', encoding="utf-8"
    )
    encoder = from_config("bert", num_hidden_layers=layers, architectures=["BertModel"])
    save_pretrained(encoder, folder / "embeddings", tokenizer=train_wordpiece(texts, 1000))
    (folder / "embeddings" / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "BertTokenizerFast", "pad_token": "[PAD]", "unk_token": "[UNK]",'
        ' "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}',
        encoding="utf-8",
    )


def run(
    folder: Path, task: str, setup: str, code: str, repeats: int
) -> tuple[float, float, int, np.ndarray]:
    """CPU seconds of loading and of the task, the peak memory, and the results of one way."""
    script, result = folder / "program.R", folder / "result"
    script.write_text(MEASURE.format(setup=setup, code=code, repeats=repeats), encoding="utf-8")
    command = [
        "Rscript",
        str(script),
        str(folder / task),
        str(folder / "sentences.txt"),
        str(result),
    ]
    label = f"r_packages-{os.getpid()}"
    settings = {"OMP_NUM_THREADS": "1", "MINHUBPY_PYTHON": sys.executable, "MINHUB_LABEL": label}
    with (folder / "errors").open("w") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | settings,
        )
    assert process.stdin
    assert process.stdout
    marks, memory = [], 0
    for line in process.stdout:
        if line.startswith("@"):
            seconds, memory = usage(label)
            marks.append(seconds)
            process.stdin.write("\n")
            process.stdin.flush()
    if process.wait():
        sys.exit((folder / "errors").read_text()[-2000:])
    begin, loaded, *completed = marks
    times = np.diff([loaded, *completed])
    return loaded - begin, float(times.min()), memory, np.fromfile(result)


def usage(label: str) -> tuple[float, int]:
    """The CPU seconds and the sum of the peak memory of R and its Python, whose environment has the
    label. Their parent is not always R.
    """
    seconds, memory = 0.0, 0
    for process in psutil.process_iter():
        try:
            if process.environ().get("MINHUB_LABEL") != label:
                continue
            times = process.cpu_times()
            status = Path(f"/proc/{process.pid}/status").read_text()
        except (psutil.Error, FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        seconds += times.user + times.system
        memory += int(status.split("VmHWM:")[1].split()[0]) * 1024
    return seconds, memory


if __name__ == "__main__":
    main()
