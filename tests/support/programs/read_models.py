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
        # "eager": in version 4, other implementations ignore some scales and soft caps.
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager"
        ).eval()
    except (ValueError, KeyError) as error:
        errors[folder.name] = str(error)
        continue
    with torch.no_grad():
        save_file({"logits": model(ids).logits.contiguous()}, folder / "logits.safetensors")
    errors[folder.name] = None
print(json.dumps({"version": transformers.__version__, "errors": errors}))
