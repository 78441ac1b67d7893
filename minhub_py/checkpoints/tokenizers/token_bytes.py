"""A token's bytes, which can be a part of a character."""

import re

from tokenizers import Tokenizer

from minhub_py.checkpoints.tokenizers.tiktoken import alphabet

REPLACEMENT = "\ufffd"  # the text of bytes that are not UTF-8
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # of SentencePiece
BYTES = {char: byte for byte, char in alphabet().items()}


def token_bytes(tokenizer: Tokenizer, id: int, text: str) -> bytes:
    """A token's bytes. text: its decoded text."""
    if REPLACEMENT not in text:
        return text.encode()
    token = tokenizer.id_to_token(id) or ""
    if match := BYTE_TOKEN.fullmatch(token):
        return bytes([int(match[1], 16)])
    if token and all(char in BYTES for char in token):  # byte-level BPE
        return bytes(BYTES[char] for char in token)
    return text.encode()


def token_label(data: bytes) -> str:
    r"""A token's text, or its bytes in OpenAI's notation, `bytes:\xe2\x80`, if they are not
    UTF-8.
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
