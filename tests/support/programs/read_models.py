"""Run by Pythons with another version of transformers: models of folders, and their logits.

read_models.py FOLDER   FOLDER/NAME/ids.safetensors contains "ids". Prints a JSON object: name ->
                        error, or None after writing FOLDER/NAME/logits.safetensors
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

errors = {}
for folder in sorted(path for path in Path(sys.argv[1]).iterdir() if path.is_dir()):
    ids = load_file(folder / "ids.safetensors")["ids"]
    try:
        # In version 4, implementations other than "eager" ignore some scales and soft caps. Falcon's
        # "eager" adds ALiBi twice.
        alibi = json.loads((folder / "config.json").read_text()).get("alibi")
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="sdpa" if alibi else "eager"
        ).eval()
    except (ValueError, KeyError) as error:
        errors[folder.name] = str(error)
        continue
    with torch.no_grad():
        save_file({"logits": model(ids).logits.contiguous()}, folder / "logits.safetensors")
    errors[folder.name] = None
print(json.dumps({"version": transformers.__version__, "errors": errors}))
