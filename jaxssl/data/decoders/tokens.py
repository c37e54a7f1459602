"""Tokenize texts for CLIP by byte pairs, with the package instant-clip-tokenizer.

The package splits, lower-cases and joins byte pairs as CLIP's released code does, but does not
clean texts. `clean_text` does so with the standard library. It is close to CLIP, which uses ftfy.
"""

import html
import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from jaxssl.errors import UserError

START, END = 49406, 49407
VOCABULARY = 49408
CONTEXT = 77
# Curly quotes become straight ones, as ftfy does. CLIP's token for 's has a straight quote.
QUOTES = str.maketrans({c: "'" for c in "‘’‚‛ʼ"} | {c: '"' for c in "“”„‟"})


def tokenize(texts: Sequence[str], context: int = CONTEXT) -> np.ndarray:
    """Convert each text to token ids: `START`, byte pairs, `END`, then zeros.

    Case is ignored, and any white space only separates words. "<|endoftext|>" in a text is read as
    ordinary text. CLIP would read it as `END`, which would move the position of its feature. For
    printable ASCII without it and HTML entities, the ids are CLIP's. See `clean_text` for the rest.

    Args:
        texts: n texts of any length. An empty text becomes `START`, `END`.
        context: number of tokens, >= 3. Longer texts are cut and keep `END` as the last token.

    Returns:
        [n, context] int32, in [0, VOCABULARY).

    Raises:
        UserError: if the package is not installed.
        ValueError: if ``context`` is below 3, or ``texts`` is a single string.

    References:
        Radford et al., Learning Transferable Visual Models From Natural Language Supervision,
        2021, section 2.4. Sennrich et al., Neural Machine Translation of Rare Words with Subword
        Units, 2016.
    """
    if isinstance(texts, str):
        raise ValueError(f"texts must be a sequence of strings, got the string {texts!r:.80}")
    if context < 3:
        raise ValueError(f"context must be at least 3, got {context}")
    cleaned = list(map(clean_text, texts))
    return load_tokenizer().tokenize_batch(cleaned, context_length=context).astype(np.int32)


def clean_text(text: str) -> str:
    """Remove common artefacts of web pages from a caption.

    HTML entities become characters, even if they were escaped twice. Curly quotes become straight.
    Accents are joined with their letters (NFC). Half a surrogate pair becomes "?". Unlike CLIP's
    ftfy, this leaves text decoded with the wrong encoding, ligatures, full-width letters and
    control characters unchanged.
    """
    text = html.unescape(html.unescape(text)).translate(QUOTES)
    return unicodedata.normalize("NFC", text).encode(errors="replace").decode()


@cache
def load_tokenizer() -> Any:
    """Create the CLIP tokenizer once, because it takes 0.1 s and cannot be pickled.

    Raises:
        UserError: if the package instant-clip-tokenizer is not installed.
    """
    try:
        # instant-clip-tokenizer is optional and has no type annotations.
        from instant_clip_tokenizer import Tokenizer  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError as error:
        raise UserError(
            "captions need the package instant-clip-tokenizer: pip install 'jaxssl[text]'"
        ) from error
    return Tokenizer()
