r"""The sentences of a toy language, whose entropy is known: what a perfect model would lose is a number we can compute.

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

The language has two editions, which differ in the state they begin with: the first has no likings. For models that
learned it, it stays as it was.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

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
