"""A Python without matplotlib, for one that has it: a short run takes longer for its picture than for its steps."""

raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
