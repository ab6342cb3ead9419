"""The toy language: what is known of it exactly, sentences drawn from it, and a judge of the sentences of others.

Which sentences there are, and how probable each is, toy_grammar.py says. A sentence is a string without its end mark,
which counts in every length and every probability as one more character, the last. Functions take the `start` of an
edition, by default today's.
"""

import math
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from numpy_minimind.data.toy_grammar import (  # noqa: F401  (its editions are names of the language)
    ACTIONS,
    ANIMALS,
    DONE,
    EDITIONS,
    END,
    FIRST_EDITION,
    START,
    THINGS,
    State,
    choices,
    is_held_out,
)

# What is known exactly: sums over the states
# -------------------------------------------


@cache
def _total(state: State) -> int:
    return sum(choice.weight for choice in choices(state))


@cache
def _expected(quantity: Callable[[str, float], float], state: State) -> float:
    """The mean, over the ways to end a sentence from here, of what its choices add up to."""
    mean = 0.0
    for word, then, weight in choices(state):
        p = weight / _total(state)
        mean += p * (quantity(word, p) + _expected(quantity, then))
    return mean


def _length(word: str, p: float) -> float:
    return len(word)


def _surprise(word: str, p: float) -> float:
    return -math.log(p)


@cache
def _count(state: State) -> int:
    return 1 if state == DONE else sum(_count(choice.then) for choice in choices(state))


@cache
def _longest(state: State) -> int:
    return max((len(choice.word) + _longest(choice.then) for choice in choices(state)), default=0)


@cache
def _characters(state: State) -> frozenset[str]:
    return frozenset().union(*({*choice.word} | _characters(choice.then) for choice in choices(state)))


def alphabet(start: State = START) -> str:
    """The characters of all sentences, in order."""
    return "".join(sorted(_characters(start) - {END}))


MAX_LENGTH = _longest(START)  # the end mark included; the same in both editions
ALPHABET = alphabet()


def count(start: State = START) -> int:
    """How many different sentences there are."""
    return _count(start)


def mean_length(start: State = START) -> float:
    """The expected number of characters of a sentence, the end mark counted."""
    return _expected(_length, start)


def entropy(start: State = START) -> float:
    """The entropy of a sentence in nats: E[-log p(sentence)]."""
    return _expected(_surprise, start)


def entropy_floor(start: State = START) -> float:
    """The least loss a model can have here, in nats a character: E[-log p(sentence)] / E[length].

    A ratio of expectations, not the expectation of a ratio: the loss on a corpus is a sum over all its
    characters, divided by their number.
    """
    return entropy(start) / mean_length(start)


# Writing
# -------


@cache
def _urn(state: State) -> list[tuple[str, State]]:
    """The choices of a state, each as often as it weighs: a fair draw from the urn is then a right draw."""
    return [(word, then) for word, then, weight in choices(state) for _ in range(weight)]


def _spell(numbers: list[float], start: State) -> str:
    """The sentence that a list of numbers in [0, 1) chooses."""
    text, state = "", start
    for u in numbers:
        urn = _urn(state)
        word, state = urn[int(u * len(urn))]
        text += word
        if state == DONE:
            break
    return text[: -len(END)]


def sample(rng: np.random.Generator, n: int, *, held_out: bool = False, start: State = START) -> list[str]:
    """Draw sentences.

    Parameters
    ----------
    rng : numpy.random.Generator
        The only source of chance.
    n : int
        How many sentences.
    held_out : bool
        False: from the training distribution. True: only sentences with a quotation, each of a thing that
        is held out, otherwise distributed as in training.
    start : State
        Of an edition.
    """
    # A word has at least one character, so there are never more choices than characters.
    sentences = [_spell(numbers, start) for numbers in rng.random((n, MAX_LENGTH)).tolist()]
    if not held_out:
        return sentences
    unheard = [other for sentence in sentences for other in _unheard(sentence)]
    missing = n - len(unheard)
    return unheard + sample(rng, missing, held_out=True, start=start) if missing else unheard


def _unheard(sentence: str) -> list[str]:
    """The same sentence with the third word that is held out after the first two, if there is such a word."""
    for said in QUOTATION.findall(sentence)[:1]:
        i, j, _ = _indices(said)
        things = [word for k, word in enumerate(THINGS) if is_held_out(i, j, k)]
        return [sentence.replace(said, said[:2] + word) for word in things]
    return []


# Reading
# -------

QUOTATION = re.compile(f"(?<=[“「])[{ANIMALS}][{ACTIONS}][{THINGS}](?=[”」])")


def _indices(quotation: str) -> tuple[int, int, int]:
    return ANIMALS.index(quotation[0]), ACTIONS.index(quotation[1]), THINGS.index(quotation[2])


class Verdict(NamedTuple):
    """What `check` says about a sentence.

    Attributes
    ----------
    grammatical : bool
        It follows the grammar. Copying is judged apart: here any two well-formed quotations will do, equal
        or not, held out or not.
    has_quotation : bool
        It opens a quotation, be it a broken one.
    copied : bool
        It holds exactly two well-formed quotations, and the second repeats the first word for word.
    held_out : bool
        Its (first) quotation is one of those that training never has.
    """

    grammatical: bool
    has_quotation: bool
    copied: bool
    held_out: bool


def check(sentence: str, start: State = START) -> Verdict:
    """Judge a sentence (without its end mark): its grammar and, separately, its copying."""
    quoted = QUOTATION.findall(sentence)
    # A sentence may quote anything if it may quote that the cat loves the star.
    frame = QUOTATION.sub("猫爱星", sentence)
    return Verdict(
        grammatical=log_prob(frame, start) > -math.inf,
        has_quotation="“" in sentence,
        copied=len(quoted) == 2 and quoted[0] == quoted[1],
        held_out=bool(quoted) and is_held_out(*_indices(quoted[0])),
    )


def log_prob(sentence: str, start: State = START) -> float:
    """Log of p(sentence) in training, in nats, the end mark included; -inf if training cannot produce it."""
    text, state, total = sentence + END, start, 0.0
    while state != DONE:
        chosen = [choice for choice in choices(state) if text.startswith(choice.word)]
        if not chosen:
            return -math.inf
        word, then, weight = chosen[0]
        total += math.log(weight / _total(state))
        text, state = text[len(word) :], then
    return -math.inf if text else total


@cache
def _spelling(state: State) -> dict[str, tuple[float, State | None]]:
    """For each beginning of a word: log p(its last character | those before); at its end, the next state."""
    weights: Counter[str] = Counter()
    for word, _, weight in choices(state):
        weights.update({word[:n]: weight for n in range(len(word) + 1)})
    then = {choice.word: choice.then for choice in choices(state)}
    parts = [part for part in weights if part]
    return {part: (math.log(weights[part] / weights[part[:-1]]), then.get(part)) for part in parts}


def conditional_log_probs(sentence: str, start: State = START) -> np.ndarray:
    """Log of p(character | those before it), a number for each, the end mark last: they sum to `log_prob`.

    This is what the best possible predictor says. No sum over derivations is needed, as the beginning of a
    sentence leaves nothing open but the word that it breaks off in.

    Raises
    ------
    ValueError
        If training cannot produce the sentence: after an impossible character nothing has a probability.
    """
    logs = []
    state, part = start, ""
    for position, character in enumerate(sentence + END):
        part += character
        if part not in _spelling(state):
            raise ValueError(f"{character!r} cannot stand at position {position} of {sentence!r}")
        log_p, then = _spelling(state)[part]
        logs.append(log_p)
        if then is not None:
            state, part = then, ""
    return np.array(logs)
