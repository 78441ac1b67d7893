"""Checks on a tokenizer.json before it reaches the library `tokenizers`, for content that ends the
process.

    continuing_subword_prefix   BPE removes as many bytes as the prefix has from the right side of each merge. If the
                                cut is inside a character, its error message is not UTF-8, and printing it aborts
                                (tokenizers 0.23, pull request 2398)
    precompiled_charsmap        the first number is a table's size, and memory is reserved for it
    a long token of a unigram   its trie is freed recursively: the stack overflows

Other corrupt content raises an exception of the library.
"""

import base64
import json
import re
from reprlib import repr as brief

from minhub_py.checkpoints.tokenizers.vocabulary import check_lengths

PREFIX, CHARSMAP = "continuing_subword_prefix", "precompiled_charsmap"
# Content that may matter, and escapes that may hide a key. Most files have none of them, and
# parsing takes a second.
SUSPECT = re.compile(rf'"{PREFIX}"\s*:\s*(?!\s|null|"")|"{CHARSMAP}"|"vocab"\s*:\s*\[|\\u00[4-7]')


def check_tokenizer_json(text: str) -> None:
    """ValueError: the text has content that ends the process, or is not JSON."""
    if not SUSPECT.search(text):
        return
    prefixes: set[str] = set()
    right_sides: set[str] = set()

    def collect(pairs: list[tuple[str, object]]) -> None:
        """Collect from each object of the file: where a key occurs twice, the library may use
        either value.
        """
        for key, value in pairs:
            if key == PREFIX and isinstance(value, str):
                prefixes.add(value)
            elif key == "merges" and isinstance(value, list):
                right_sides.update(filter(None, map(right_side, value)))
            elif key == "vocab" and isinstance(value, list):
                check_lengths(entry[0] for entry in value if isinstance(entry, list) and entry)
            elif key == CHARSMAP and isinstance(value, str):
                check_charsmap(base64.b64decode(value, validate=True))

    json.loads(text, object_pairs_hook=collect)
    for prefix in prefixes - {""}:
        size = len(encoded(prefix))
        for right in right_sides:
            if len(encoded(right)) < size or encoded(right)[size : size + 1] in CONTINUATION_BYTES:
                raise ValueError(
                    f"the merge with {brief(right)} does not fit the {PREFIX} {brief(prefix)}"
                )


CONTINUATION_BYTES = {bytes([byte]) for byte in range(0x80, 0xC0)}


def encoded(text: str) -> bytes:
    """A text as UTF-8. JSON may have half of a surrogate pair."""
    return text.encode(errors="surrogatepass")


def right_side(merge: object) -> str | None:
    """The right side of a merge in either form, ["a", "b"] or "a b"; None: another value."""
    pair = merge.split(" ") if isinstance(merge, str) else merge
    if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], str):
        return pair[1]
    return None


def check_charsmap(charsmap: bytes) -> None:
    """ValueError: the table of a map of characters exceeds the map: 4 bytes are its size, and the
    texts follow it.
    """
    if len(charsmap) < 4 or int.from_bytes(charsmap[:4], "little") > len(charsmap) - 4:
        raise ValueError("its map of characters is cut")
