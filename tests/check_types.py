"""Checks the types that users see: mypy finds all mistakes in a page of user code and no others.
`make types`.

pyright checks the page, too, if it is installed; any path of it can be passed as an argument.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parent / "support" / "programs" / "user_code.py"


def main() -> int:
    """The exit status: 1 if a type checker misses a mistake or rejects correct code."""
    pyright = sys.argv[1:] or [path for path in [shutil.which("pyright")] if path]
    checkers = {"mypy": [sys.executable, "-m", "mypy", "--no-error-summary", str(PAGE)]}
    if pyright:
        checkers["pyright"] = [*pyright, "--pythonpath", sys.executable, str(PAGE)]
    return max(check(name, command) for name, command in checkers.items())


def check(name: str, command: list[str]) -> int:
    """1 if the lines with errors are not those with a planted mistake."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    planted = {number for number, line in enumerate(lines, 1) if "# mistake" in line}
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    matches = {
        int(number) for number in re.findall(rf"{PAGE.name}:(\d+)(?::\d+ -)?:? error", output)
    }
    if matches == planted:
        print(f"{name}: all {len(planted)} planted mistakes are found")
        return 0
    print(
        f"{name}: missed lines {sorted(planted - matches)}, rejected lines"
        f" {sorted(matches - planted)}\n{output}"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
