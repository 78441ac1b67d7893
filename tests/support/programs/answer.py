"""Run by Pythons with transformers 4, which has the question answering pipeline.

answer.py FOLDER    FOLDER/calls.json is a list of [question, context, settings]. Prints a JSON list
of answers.
"""

import json
import sys
from pathlib import Path

import transformers

folder = Path(sys.argv[1])
tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
settings = json.loads((folder / "tokenizer_config.json").read_text())
tokenizer.model_input_names = settings.get("model_input_names", ["input_ids", "attention_mask"])
model = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()
tokenizer.model_max_length = settings["model_max_length"]
pipeline = transformers.QuestionAnsweringPipeline(model=model, tokenizer=tokenizer, device="cpu")
calls = json.loads((folder / "calls.json").read_text())
results = []
for question, context, options in calls:
    answers = pipeline(question=question, context=context, **options)
    results.append(answers if isinstance(answers, list) else [answers])
print(json.dumps({"version": transformers.__version__, "results": results}))
