r"""A toy language with known entropy: what a perfect model would lose on it is a number we can compute.

Four kinds of sentence, each of which makes the reader look back:

* a *quotation*, echoed word for word: ``奶奶笑着说：“鱼想海”，大家也说：「鱼想海」``
  (Grandma says, laughing, "the fish misses the sea", and everybody says so too);
* a *trade*, whose nouns agree with the measure words before them: ``小明用三只爱听雨的猫换了一本会唱歌的书``
  (Xiao Ming traded three cats that love the rain for a book that can sing);
* a *scene*, whose verb agrees with its subject, not with the company it keeps: ``the owl under bees reads``;
* a *liking*, whose end is of the other kind than its beginning, a pet for a person and a person for a pet: ``我喜欢猫``
  (I like the cat), ``猫喜欢我`` (the cat likes me), ``你爱狗`` (you love the dog).

A sentence is spelled by a chain of choices. What a rule has to remember is its arguments; it returns its
choices: a word, the state that follows, and a weight. No word of a rule is the beginning of another word of
the same rule, so a reader going from left to right always knows which word was chosen: *one sentence has one
derivation*, and its probability is the product of those of its choices. As the chain never loops, counts,
lengths and entropies are exact sums over its states.

Of the thousand things one can quote, 55 are never said in training (`is_held_out`): there a model has to copy
and cannot remember.

A sentence is a string without its end mark. In every length and every probability the end mark counts as one
more character, the last.

The language has two editions, which differ in the state they begin with: the first has no likings. For models that
learned it, it stays as it was: functions take the `start` of an edition, by default today's.
"""

import math
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

END = "\n"

SPEAKERS = ["小明", "小红", "老王", "奶奶", "Tom", "Amy"]
MANNERS = ["", "笑着", "唱着", "大声", "小声"]  # (plainly), laughing, singing, loudly, softly
ECHOES = ["大家", "大山", "小鸟", "星星"]  # everybody, the mountain, the little bird, the stars

# What is quoted takes one character of each row: 猫爱月 (the cat loves the moon), 狗追风 (the dog chases the
# wind). The echo stands in other marks, 「」: they tell a small model, early, that here it has to copy.
ANIMALS = "猫狗鸟鱼马牛羊兔虎龙"  # cat dog bird fish horse ox sheep rabbit tiger dragon
ACTIONS = "爱想看等找追画听怕梦"  # loves misses watches awaits seeks chases paints hears fears dreams-of
THINGS = "月星云海山花雨风书茶"  # moon star cloud sea mountain flower rain wind book tea

NUMBERS = "一两三几"  # one, two, three, a few
MEASURES = {  # measure word: the nouns that are counted with it
    "只": "猫狗鸟羊兔虎",
    "条": "鱼龙",
    "匹": "马",
    "头": "牛",
    "朵": "花云",
    "座": "山",
    "本": "书",
    "杯": "茶",
}
# Sea-gazing, rain-loving, tiger-fearing, star-chasing, painting, singing, book-loving, tea-seeking: four
# characters each, so that a 5-gram has lost sight of the measure word when the noun comes.
QUALITIES = ["爱看海的", "爱听雨的", "怕老虎的", "追星星的", "会画画的", "会唱歌的", "想看书的", "找花茶的"]

CREATURES = ["cat", "dog", "owl", "hen", "cow", "ant", "bee", "pig"]
PLACES = ["near", "under", "with", "by"]
COMPANY = [*(f"{creature}s" for creature in CREATURES), "Tom", "Amy"]
VERBS = ["sing", "wait", "read", "hide", "swim", "play", "yawn", "rest"]

LIKES = ["喜欢", "爱"]  # likes, loves
PEOPLE = "我你他她"  # I, you, he, she
PETS = "猫狗"  # cat, dog


def is_held_out(animal: int, action: int, thing: int) -> bool:
    """Whether a quotation, given by the indices of its three words, is kept out of training.

    55 of 1,000 are. The rule keeps no two words apart: every pair of them goes on occurring in training.
    """
    return animal + action + thing == 9


# The grammar
# -----------

State = tuple[Any, ...]  # (rule, *what it remembers)
DONE: State = ()


class Choice(NamedTuple):
    """One way to go on from a state."""

    word: str
    then: State
    weight: int = 1


def _begin() -> list[Choice]:
    """A liking takes the place of every fourth scene."""
    names = [Choice(name, (_act,), weight=12) for name in SPEAKERS]
    return [Choice("the ", (_subject,), weight=18), *names, *(Choice(who, (_like, who)) for who in PEOPLE + PETS)]


def _begin_first_edition() -> list[Choice]:
    return [Choice("the ", (_subject,), weight=2), *(Choice(name, (_act,)) for name in SPEAKERS)]


def _act() -> list[Choice]:
    quoting = [Choice(f"{how}说：“", (_animal,)) for how in MANNERS]
    return [Choice("用", (_number, "换了"), weight=3), *quoting]


# A quotation: what was said is remembered until it is repeated.
def _animal() -> list[Choice]:
    return [Choice(word, (_action, i)) for i, word in enumerate(ANIMALS)]


def _action(i: int) -> list[Choice]:
    return [Choice(word, (_thing, i, j)) for j, word in enumerate(ACTIONS)]


def _thing(i: int, j: int) -> list[Choice]:
    said = ANIMALS[i] + ACTIONS[j]
    return [Choice(word, (_echo, said + word)) for k, word in enumerate(THINGS) if not is_held_out(i, j, k)]


def _echo(said: str) -> list[Choice]:
    return [Choice(f"”，{name}也说：「{said}」{END}", DONE) for name in ECHOES]


# A trade: the measure word is remembered until its noun. `after` is what follows that noun: 换了, "for", when
# it is the thing given, the end mark when it is the thing received.
def _number(after: str) -> list[Choice]:
    return [Choice(number, (_measure, after)) for number in NUMBERS]


def _measure(after: str) -> list[Choice]:
    return [Choice(word, (_quality, after, word), weight=len(nouns)) for word, nouns in MEASURES.items()]


def _quality(after: str, measure: str) -> list[Choice]:
    return [Choice(quality, (_noun, after, measure)) for quality in QUALITIES]


def _noun(after: str, measure: str) -> list[Choice]:
    then = DONE if after == END else (_number, END)
    return [Choice(noun + after, then) for noun in MEASURES[measure]]


# A scene: the ending that the verb will need is remembered; the company has a number of its own.
def _subject() -> list[Choice]:
    one = [Choice(f"{creature} ", (_place, "s")) for creature in CREATURES]
    several = [Choice(f"{creature}s ", (_place, "")) for creature in CREATURES]
    return one + several


def _place(ending: str) -> list[Choice]:
    return [Choice(f"{place} ", (_company, ending)) for place in PLACES]


def _company(ending: str) -> list[Choice]:
    return [Choice(f"{company} ", (_verb, ending)) for company in COMPANY]


def _verb(ending: str) -> list[Choice]:
    return [Choice(verb + ending + END, DONE) for verb in VERBS]


# A liking: people like pets, and pets like people.
def _like(who: str) -> list[Choice]:
    liked = {whom: 1 + (whom == "猫") for whom in (PETS if who in PEOPLE else PEOPLE)}
    return [Choice(f"{likes}{whom}{END}", DONE, weight) for likes in LIKES for whom, weight in liked.items()]


START: State = (_begin,)
FIRST_EDITION: State = (_begin_first_edition,)
EDITIONS = (START, FIRST_EDITION)


@cache
def choices(state: State) -> list[Choice]:
    """The choices of a state: words of which none is the beginning of another."""
    if state == DONE:
        return []
    rule: Callable[..., list[Choice]] = state[0]
    return rule(*state[1:])


@cache
def _total(state: State) -> int:
    return sum(choice.weight for choice in choices(state))


# What is known exactly: sums over the states
# -------------------------------------------


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
