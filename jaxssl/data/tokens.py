"""Texts as CLIP's tokens: byte pairs of lower-case UTF-8, by the package instant-clip-tokenizer.

The package splits, lower-cases and joins byte pairs as the released code of CLIP; it does not
mend texts. That is done here with the standard library: close to CLIP, which mends with ftfy.
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
# Curly to straight, as ftfy: "it’s" has CLIP's token for 's only so.
QUOTES = str.maketrans({c: "'" for c in "‘’‚‛ʼ"} | {c: '"' for c in "“”„‟"})


def tokenize(texts: Sequence[str], context: int = CONTEXT) -> np.ndarray:
    """Token ids of texts: `START`, the text's, `END`, then zeros.

    Upper and lower case are one, white space of any kind only separates, and no text makes a
    `START` or `END`: "<|endoftext|>" is read letter by letter (by CLIP as the token, which would
    move its feature). For texts of printable ASCII without that the ids are CLIP's; for others see
    `mend`.

    Args:
        texts: n of them, each of any length; an empty one is `START`, `END`.
        context: >= 3. A longer text loses its end and keeps `END` as the last token.

    Returns:
        [n, context] int32, in [0, VOCABULARY).

    Raises:
        UserError: if the package is not installed.
        ValueError: if ``context`` is below 3, or ``texts`` is a single text.

    References:
        Radford et al., Learning Transferable Visual Models From Natural Language Supervision,
        2021, section 2.4; Sennrich et al., Neural Machine Translation of Rare Words with Subword
        Units, 2016.
    """
    if isinstance(texts, str):
        raise ValueError(f"texts must be a sequence of texts, got the single text {texts!r:.80}")
    if context < 3:
        raise ValueError(f"context must be >= 3, got {context}")
    ids = _tokenizer().tokenize_batch([mend(text) for text in texts], context_length=context)
    return np.asarray(ids).reshape(len(texts), context).astype(np.int32)


def mend(text: str) -> str:
    """A text without the marks of its way through the web.

    HTML's entities become their characters, also where they were escaped twice; curly quotes become
    straight; accents join their letters (NFC); half a surrogate pair becomes "?". Not done, unlike
    by CLIP's ftfy: text decoded by the wrong encoding, ligatures, full-width letters and control
    characters stay what they are.
    """
    text = html.unescape(html.unescape(text)).translate(QUOTES)
    return unicodedata.normalize("NFC", text).encode(errors="replace").decode()


@cache
def _tokenizer() -> Any:
    """The package's tokenizer: a tenth of a second to make, and not to be pickled."""
    try:
        from instant_clip_tokenizer import Tokenizer  # only texts need it
    except ImportError as error:
        raise UserError(
            "texts need the package instant-clip-tokenizer: pip install 'jaxssl[text]'"
        ) from error
    return Tokenizer()
