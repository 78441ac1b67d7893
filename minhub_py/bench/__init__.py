"""`minhub bench`: this package measured against its peers, on one's own machine.

A reader's way: `cases` (what is measured) -> `run` (models, and workers that take turns) -> `worker` (a process for
each library) -> `engines` (what is asked of it) -> `report` and `plot` (what is shown of it).

Every ratio is of medians, with both sides interleaved in one run and a round before that is not counted. All of it runs
on the CPU. Nothing heavy is imported here: the command shows the names of the cases in its --help.
"""

# Name -> what it measures, in the order in which they run.
CASES = {
    "bandwidth": "reading memory",
    "decode": "one text, id by id",
    "positions": "an id at the beginning of a text and far into it",
    "gptneo": "GPT-Neo near the end of its context",
    "batch": "several texts at once",
    "prefill": "a prompt to its first new id",
    "speculation": "text that repeats, several ids at a time",
    "quality": "what smaller weights cost",
    "load": "opening a checkpoint, in a fresh process",
    "start": "the command line to the first text, in a fresh process",
    "lstm": "an LSTM against a plain loop over nn.LSTM",
    "busy": "decoding while another program uses a core",
    "tokenize": "text to ids",
    "convert": "a checkpoint to another layout and dtype",
}
