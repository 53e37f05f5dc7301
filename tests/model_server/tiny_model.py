"""A language model of 100 KB in GGUF, the format of llama.cpp: each token that it writes follows from the one before.

Its one layer adds nothing to a token's embedding, so the embeddings and the output are a table of next tokens. Its
answer to a message is " it is here"; its answer to one that ends with "!" has no end.
"""

from __future__ import annotations

import struct
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    type Value = int | float | str | Sequence[int | float | str]

_FIRST, _END = "\u2581it", "</s>"
_NEXT = {_FIRST: "\u2581is", "\u2581is": "\u2581here", "\u2581here": _END, "!": "\u2581on", "\u2581on": "\u2581on"}
"""The next token of some; `_FIRST` follows all others."""
_COLUMNS = ["", *_NEXT]
"""The tokens that the columns of both tables stand for; the first is for all others."""
_WIDTH = 32
_SURE = 10.0  # so much above the logits of all other tokens that no temperature below 1 changes the choice
_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
_MAGIC, _VERSION, _ALIGNMENT = b"GGUF", 3, 32
_UINT32, _INT32, _FLOAT32, _STRING, _ARRAY = 4, 5, 6, 8, 9
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6


def tiny_model() -> bytes:
    """The file."""
    own = [token for token in _COLUMNS if token]
    tokens = ["<unk>", "<s>", _END, *(f"<0x{byte:02X}>" for byte in range(256)), *own]
    kinds = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256, *[_NORMAL] * len(own)]
    facts: dict[str, Value] = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.block_count": 1,
        "llama.context_length": 4096,
        "llama.embedding_length": _WIDTH,
        "llama.feed_forward_length": _WIDTH,
        "llama.attention.head_count": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": _TEMPLATE,
    }
    ones, zeros = [[1.0] * _WIDTH], [[0.0] * _WIDTH] * _WIDTH
    tables: dict[str, list[list[float]]] = {
        "token_embd": [_row([token if token in _NEXT else ""], 1.0) for token in tokens],
        "output": [_row([one for one in _COLUMNS if _NEXT.get(one, _FIRST) == token], _SURE) for token in tokens],
        "output_norm": ones,
        "blk.0.attn_norm": ones,
        "blk.0.ffn_norm": ones,
        **{f"blk.0.attn_{part}": zeros for part in ("q", "k", "v", "output")},
        **{f"blk.0.ffn_{part}": zeros for part in ("gate", "up", "down")},
    }
    return _gguf(facts, tables)


def _row(ones: Iterable[str], weight: float) -> list[float]:
    row = [0.0] * _WIDTH
    for token in ones:
        row[_COLUMNS.index(token)] = weight
    return row


def _gguf(facts: Mapping[str, Value], tables: Mapping[str, list[list[float]]]) -> bytes:
    head = _MAGIC + struct.pack("<IQQ", _VERSION, len(tables), len(facts))
    for name, fact in facts.items():
        kind, packed = _packed(fact)
        head += _text(name) + struct.pack("<I", kind) + packed
    data = b""
    for name, rows in tables.items():
        dimensions = [_WIDTH] if len(rows) == 1 else [_WIDTH, len(rows)]
        shape = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
        head += _text(f"{name}.weight") + shape + struct.pack("<IQ", 0, len(data))  # 0: float32
        data += struct.pack(f"<{_WIDTH * len(rows)}f", *chain.from_iterable(rows))
    return head + b"\0" * (-len(head) % _ALIGNMENT) + data


def _packed(value: Value) -> tuple[int, bytes]:
    match value:
        case str():
            return _STRING, _text(value)
        case int():
            return _UINT32, struct.pack("<I", value)
        case float():
            return _FLOAT32, struct.pack("<f", value)
    items = [(_INT32, struct.pack("<i", item)) if isinstance(item, int) else _packed(item) for item in value]
    return _ARRAY, struct.pack("<IQ", items[0][0], len(items)) + b"".join(packed for _, packed in items)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded
