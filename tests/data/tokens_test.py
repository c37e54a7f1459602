"""CLIP's tokens against published ids, what odd texts become, and the sentences for classes."""

import sys
from functools import partial

import numpy as np
import pytest
from tiny import DIGITS

import jaxssl
from jaxssl.data import prompts
from jaxssl.data.decoders import tokens
from jaxssl.errors import UserError
from jaxssl.training import config
from jaxssl.training.dry_run import dry_run

pytestmark = [pytest.mark.fast, pytest.mark.usefixtures("tokenizer")]

# Token ids, without start and end, from the released tokenizer of CLIP (openai/CLIP at d05afc4).
# The documentation of instant-clip-tokenizer has the same ids for the first two texts.
PUBLISHED = {
    "A person riding a motorcycle": [320, 2533, 6765, 320, 10297],
    "Hi there": [1883, 997],
    "a photo of a cat": [320, 1125, 539, 320, 2368],
    "a photo of a cat.": [320, 1125, 539, 320, 2368, 269],
    "2023": [273, 271, 273, 274],
    "don't": [847, 713],
    "café": [15304],
    "\U0001f600": [7334],
    "": [],
}


def ids(text, context=77):
    """What stands between start and end, after a look at all the rest."""
    (row,) = tokens.tokenize([text], context).tolist()
    end = row.index(tokens.END)
    assert row[0] == tokens.START and not any(row[end + 1 :]) and len(row) == context
    return row[1:end]


@pytest.mark.parametrize("text", PUBLISHED, ids=ascii)
def test_token_ids_equal_published_token_ids(text):
    assert ids(text) == PUBLISHED[text]


def test_tokenizing_a_batch_equals_tokenizing_each_text():
    actual = tokens.tokenize(tuple(PUBLISHED), 12)
    assert (actual.shape, actual.dtype) == ((len(PUBLISHED), 12), np.int32)
    np.testing.assert_array_equal(actual, [tokens.tokenize([text], 12)[0] for text in PUBLISHED])
    assert actual.max() == tokens.END == tokens.VOCABULARY - 1
    # The text network takes the features at the position of the largest token id.
    assert (actual.argmax(axis=1) == [len(known) + 1 for known in PUBLISHED.values()]).all()


def test_tokenizing_no_texts_gives_no_rows():
    actual = tokens.tokenize([])
    assert (actual.shape, actual.dtype) == ((0, tokens.CONTEXT), np.int32)


@pytest.mark.parametrize("context", [3, 5, 6, 7, 8])
def test_long_text_is_truncated_and_keeps_the_end_token(context):
    known = PUBLISHED["A person riding a motorcycle"]
    assert ids("A person riding a motorcycle", context) == known[: context - 2]


@pytest.mark.parametrize(
    ("odd", "plain"),
    [
        ("A PHOTO of a Cat", "a photo of a cat"),
        ("  a photo\n\nof\ta\r\ncat ", "a photo of a cat"),
        ("a\u00a0photo\u2003of\u3000a cat", "a photo of a cat"),
        ("\n \t", ""),
        ("salt &amp; pepper &lt;3", "salt & pepper <3"),
        ("salt &amp;amp; pepper", "salt & pepper"),
        ("&eacute;t&#233;", "été"),
        ("CAFÉ", "café"),
        ("cafe\u0301", "café"),
        ("\u201cit\u2019s\u201d", '"it\'s"'),
        ("bad \ud800 half", "bad ? half"),
    ],
    ids=ascii,
)
def test_whitespace_case_and_html_escapes_do_not_change_the_tokens(odd, plain):
    assert ids(odd) == ids(plain)


@pytest.mark.parametrize("text", ["<|startoftext|>", "a <|endoftext|> b", "&lt;|endoftext|&gt;"])
def test_special_tokens_in_texts_are_tokenized_as_plain_text(text):
    actual = tokens.tokenize([text])[0].tolist()
    assert actual.count(tokens.START) == actual.count(tokens.END) == 1


def test_any_unicode_text_can_be_tokenized():
    text = "".join(map(chr, range(0x3000)))
    actual = tokens.tokenize([text[i : i + 64] for i in range(0, len(text), 64)], 256)
    assert actual.min() >= 0 and (actual[:, 0] == tokens.START).all()
    assert ((actual == tokens.END).sum(axis=1) == 1).all()


def test_tokenizer_error_names_the_invalid_argument():
    with pytest.raises(ValueError, match="context must be at least 3, got 2"):
        tokens.tokenize(["a"], 2)
    with pytest.raises(ValueError, match="sequence of strings, got the string 'a cat'"):
        tokens.tokenize("a cat")


def test_missing_text_dependency_is_found_before_the_data_are_prepared(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "instant_clip_tokenizer", None)
    recipe = DIGITS.parent / "image_text" / "digit_captions.py"
    settings = config.load(recipe, [("data.dir", str(tmp_path / "data"))])
    train = partial(jaxssl.train, settings, workdir=tmp_path / "run")
    for start in (train, partial(dry_run, settings), partial(tokens.tokenize, ["a"])):
        tokens.load_tokenizer.cache_clear()
        with pytest.raises(UserError, match=r"^.*pip install 'jaxssl\[text\]'\Z"):  # one line
            start()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ensemble", prompts.PROMPTS)
def test_every_prompt_template_has_one_placeholder(ensemble):
    (sentences,) = prompts.fill(ensemble, ["great {0} auk"])
    assert len(sentences) == len(set(sentences)) == len(prompts.PROMPTS[ensemble]) >= 1
    assert all(sentence.count("great {0} auk") == 1 for sentence in sentences)


def test_prompts_keep_the_order_and_names_of_classes():
    assert prompts.fill("photo", ["cat", "7"]) == [["a photo of a cat."], ["a photo of a 7."]]
    assert prompts.fill("plain", iter(["cat", "guide_dog"])) == [["cat"], ["guide dog"]]
    assert len(prompts.PROMPTS["simple7"]) == 7
    assert prompts.fill("simple7", []) == []


def test_digit_classes_become_words_in_prompts():
    actual = prompts.fill("digits", [*map(str, range(11)), "letter"])
    assert [row[0].split()[-1] for row in actual] == [*prompts.SPOKEN.values(), "10", "letter"]
    assert list(prompts.SPOKEN) == [str(digit) for digit in range(10)]


def test_unknown_prompt_ensemble_error_names_it():
    with pytest.raises(UserError, match="'simple' is unknown; did you mean 'simple7'"):
        prompts.fill("simple", ["cat"])
