"""The toy language: what it claims is found a second way, by hand, by counting, by sampling or by a regex."""

import hashlib
import math
import re
from collections import Counter, defaultdict
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest

from numpy_minimind.data import toy_grammar as grammar
from numpy_minimind.data import toy_language as toy

QUOTES, TRADES, SCENES, LIKINGS = 15 / 32, 9 / 32, 6 / 32, 2 / 32  # the share of each kind of sentence
FIRST_SCENES = 8 / 32  # and in the first edition, which has no likings

in_both_editions = pytest.mark.parametrize(
    ("start", "scenes", "likings"), [(toy.START, SCENES, LIKINGS), (toy.FIRST_EDITION, FIRST_SCENES, 0.0)]
)


@cache
def big_sample(start=toy.START):
    return toy.sample(np.random.default_rng(20), 20_000, start=start)


def one_of(words):
    return "(?:" + "|".join(words) + ")"


def second_opinion(start=toy.START):
    """The whole language as one regular expression, with any two quotations in a quotation sentence."""
    speaker, manner, echo = one_of(grammar.SPEAKERS), one_of(grammar.MANNERS), one_of(grammar.ECHOES)
    said = f"[{grammar.ANIMALS}][{grammar.ACTIONS}][{grammar.THINGS}]"
    quality = one_of(grammar.QUALITIES)
    goods = one_of(f"[一两三几]{word}{quality}[{nouns}]" for word, nouns in grammar.MEASURES.items())
    creature, verb = one_of(grammar.CREATURES), one_of(grammar.VERBS)
    between = f" {one_of(grammar.PLACES)} {one_of(grammar.COMPANY)} "
    liking = "[我你他她](?:喜欢|爱)[猫狗]|[猫狗](?:喜欢|爱)[我你他她]"
    return re.compile(
        f"{speaker}{manner}说：“{said}”，{echo}也说：「{said}」|{speaker}用{goods}换了{goods}"
        f"|the {creature}{between}{verb}s|the {creature}s{between}{verb}" + (f"|{liking}" if start == toy.START else "")
    )


def all_states():
    seen, new = set(), {*toy.EDITIONS}
    while new:
        seen |= new
        new = {choice.then for state in new for choice in grammar.choices(state)} - seen
    return seen


def every_scene():
    one = [(name, "s") for name in grammar.CREATURES]
    several = [(name + "s", "") for name in grammar.CREATURES]
    for (subject, ending), place, company, verb in product(
        one + several, grammar.PLACES, grammar.COMPANY, grammar.VERBS
    ):
        yield f"the {subject} {place} {company} {verb}{ending}"


def every_liking():
    for who, whom in product("我你他她猫狗", repeat=2):
        yield f"{who}喜欢{whom}"
        yield f"{who}爱{whom}"


def every_plain_quotation_of_tom():
    for animal, action, thing, echo in product(grammar.ANIMALS, grammar.ACTIONS, grammar.THINGS, grammar.ECHOES):
        said = animal + action + thing
        yield f"Tom说：“{said}”，{echo}也说：「{said}」"


# Closed forms
# ------------


def test_count_by_hand():
    quotations = 6 * 5 * (1000 - 55) * 4
    trades = 6 * (4 * 15 * 8) ** 2
    scenes = 16 * 4 * 10 * 8
    likings = 2 * (4 * 2) * 2
    assert toy.count(toy.FIRST_EDITION) == quotations + trades + scenes >= 1_000_000
    assert toy.count() == quotations + trades + scenes + likings


@in_both_editions
def test_entropy_by_hand(start, scenes, likings):
    kind = -sum(p * math.log(p) for p in (QUOTES, TRADES, scenes, likings) if p)
    # Of a hundred beginnings of a quotation, 55 have a third word that is held out.
    quotation = math.log(6 * 5 * 100 * 4) + 0.55 * math.log(9) + 0.45 * math.log(10)
    trade = math.log(6 * (4 * 15 * 8) ** 2)  # a measure word weighs as many as it has nouns: all nouns alike
    scene = math.log(16 * 4 * 10 * 8)
    # Four of the six are people: 2/3 of their likings are the cat's.
    whom = 4 / 6 * (math.log(3) - 2 / 3 * math.log(2)) + 2 / 6 * math.log(4)
    liking = math.log(6 * 2) + whom
    by_hand = kind + QUOTES * quotation + TRADES * trade + scenes * scene + likings * liking
    assert toy.entropy(start) == pytest.approx(by_hand, rel=1e-12)
    assert toy.entropy(start) >= 8


@in_both_editions
def test_mean_length_by_hand(start, scenes, likings):
    def mean(words):
        return sum(map(len, words)) / len(words)

    name = mean(grammar.SPEAKERS)
    quotation = name + mean(grammar.MANNERS) + len("说：“鱼想海”，也说：「鱼想海」") + mean(grammar.ECHOES)
    trade = name + len("用一只猫换了一只猫") + 2 * mean(grammar.QUALITIES)
    # Of subject and verb exactly one ends in s.
    scene = len("the    s") + sum(map(mean, (grammar.CREATURES, grammar.PLACES, grammar.COMPANY, grammar.VERBS)))
    liking = mean(["我爱猫", "我喜欢猫"])
    by_hand = QUOTES * quotation + TRADES * trade + scenes * scene + likings * liking + 1
    assert toy.mean_length(start) == pytest.approx(by_hand, rel=1e-12)
    assert 20 <= toy.mean_length(start) <= 30


@pytest.mark.parametrize("start", toy.EDITIONS)
def test_the_floor_is_a_ratio_of_expectations(start):
    assert toy.entropy_floor(start) == toy.entropy(start) / toy.mean_length(start)
    assert 0.4 < toy.entropy_floor(start) < 0.75


@pytest.mark.parametrize("start", toy.EDITIONS)
@pytest.mark.parametrize("what", ["entropy", "mean_length"])
def test_closed_forms_against_a_sample(what, start):
    measure = {"entropy": lambda s: -toy.log_prob(s, start), "mean_length": lambda s: len(s) + 1}[what]
    values = np.array([measure(sentence) for sentence in big_sample(start)])
    standard_error = values.std() / math.sqrt(len(values))
    assert abs(values.mean() - getattr(toy, what)(start)) < 5 * standard_error


# One sentence, one derivation; probabilities add up to one
# ----------------------------------------------------------


def test_no_word_is_the_beginning_of_another():
    """With that, a reader from left to right always knows the choice: no sentence has two derivations."""
    for state in all_states() - {grammar.DONE}:
        words = sorted(choice.word for choice in grammar.choices(state))
        assert all(words), state
        # In sorted order a word is followed at once by those that it begins.
        assert not any(after.startswith(before) for before, after in pairwise(words)), state
        assert all(type(choice.weight) is int and choice.weight > 0 for choice in grammar.choices(state))


def test_the_end_mark_ends_the_sentence_and_nothing_else():
    for state in all_states():
        for choice in grammar.choices(state):
            assert (toy.END in choice.word) == (choice.then == grammar.DONE)
            assert toy.END not in choice.word[:-1]


@pytest.mark.parametrize("start", toy.EDITIONS)
def test_samples_have_exactly_one_derivation(start):
    def derivations(text, state):
        if state == grammar.DONE:
            return not text
        fitting = [choice for choice in grammar.choices(state) if text.startswith(choice.word)]
        return sum(derivations(text[len(choice.word) :], choice.then) for choice in fitting)

    assert {derivations(sentence + toy.END, start) for sentence in big_sample(start)[:3000]} == {1}


@pytest.mark.parametrize("start", toy.EDITIONS)
def test_all_sentences_together_have_probability_one(start):
    """Forward, from the first character: what arrives at the end marks is everything."""
    arriving, finished = {start: 1.0}, 0.0
    while arriving:
        following = defaultdict(float)
        for state, mass in arriving.items():
            total = sum(choice.weight for choice in grammar.choices(state))
            for choice in grammar.choices(state):
                following[choice.then] += mass * choice.weight / total
        finished += following.pop(grammar.DONE, 0.0)
        arriving = following
    assert finished == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("sentences", "start", "share", "number"),
    [
        (every_scene, toy.START, SCENES, 5120),
        (every_scene, toy.FIRST_EDITION, FIRST_SCENES, 5120),
        (every_plain_quotation_of_tom, toy.START, QUOTES / 6 / 5, 3780),
        (every_plain_quotation_of_tom, toy.FIRST_EDITION, QUOTES / 6 / 5, 3780),
        (every_liking, toy.START, LIKINGS, 32),
        (every_liking, toy.FIRST_EDITION, 0, 0),
    ],
)
def test_enumerated_parts_have_the_probability_of_their_kind(sentences, start, share, number):
    logs = np.array([toy.log_prob(sentence, start) for sentence in sentences()])
    assert np.isfinite(logs).sum() == number
    assert np.exp(logs).sum() == pytest.approx(share, rel=1e-12)


# Character by character
# ----------------------


def test_conditionals_sum_to_the_log_probability():
    for sentence in big_sample()[:2000]:
        logs = toy.conditional_log_probs(sentence)
        assert logs.dtype == np.float64
        assert logs.shape == (len(sentence) + 1,)
        assert (logs <= 0).all()
        assert logs.sum() == pytest.approx(toy.log_prob(sentence), rel=1e-12)


@pytest.mark.parametrize(
    ("sentences", "stem"), [(every_scene, "the owl"), (every_plain_quotation_of_tom, "Tom说：“"), (every_liking, "我")]
)
def test_conditionals_are_ratios_of_prefix_probabilities(sentences, stem):
    """Summed over all sentences that go on in the same way."""
    mass = Counter()
    possible = [s for s in sentences() if s.startswith(stem) and toy.log_prob(s) > -math.inf]
    for sentence in possible:
        text = sentence + toy.END
        mass.update({text[:n]: math.exp(toy.log_prob(sentence)) for n in range(len(stem), len(text) + 1)})
    for sentence in possible[:: len(possible) // 200 or 1]:
        text = sentence + toy.END
        expected = [math.log(mass[text[: n + 1]] / mass[text[:n]]) for n in range(len(stem), len(text))]
        np.testing.assert_allclose(toy.conditional_log_probs(sentence)[len(stem) :], expected, atol=1e-10)


def test_a_copy_costs_nothing_and_an_agreement_less_than_a_guess():
    copy = toy.conditional_log_probs("Tom说：“鱼想海”，大家也说：「鱼想海」")
    np.testing.assert_array_equal(copy[-5:], 0)
    trade = toy.conditional_log_probs("Tom用三只爱听雨的猫换了一本会唱歌的书")
    assert trade[11 - 1] == pytest.approx(-math.log(6))  # 猫: one of the six that 只 counts
    assert trade[-2] == 0  # 书: the only one that 本 counts
    assert toy.conditional_log_probs("the cats under Tom sing")[-1] == 0
    liked = np.exp(toy.conditional_log_probs("我喜欢猫"))
    np.testing.assert_allclose(liked, [LIKINGS / 6, 1 / 2, 1, 2 / 3, 1], rtol=1e-12)
    assert np.exp(toy.conditional_log_probs("猫喜欢我")[3]) == pytest.approx(1 / 4)  # one of four people


def test_the_lessons_sentence_goes_on_most_likely_with_the_cat():
    cat, dog = (math.exp(toy.conditional_log_probs(f"我喜欢{whom}")[3]) for whom in "猫狗")
    assert cat > dog and cat + dog == pytest.approx(1)
    for sentence in ("我喜欢猫", "猫喜欢我", "我爱狗"):
        assert toy.check(sentence).grammatical and toy.log_prob(sentence) > -math.inf
        assert not toy.check(sentence, toy.FIRST_EDITION).grammatical


def test_conditionals_refuse_what_is_not_a_sentence():
    with pytest.raises(ValueError, match="'x' cannot stand at position 4"):
        toy.conditional_log_probs("the xats near Tom sing")
    with pytest.raises(ValueError, match="cannot stand at position 23"):
        toy.conditional_log_probs("the cats near Tom sing\nthe")
    with pytest.raises(ValueError, match="position 3"):
        toy.conditional_log_probs("Tom")


# Samples
# -------


@pytest.mark.parametrize("start", toy.EDITIONS)
def test_samples_are_sentences(start):
    opinion = second_opinion(start)
    for sentence in big_sample(start):
        assert opinion.fullmatch(sentence), sentence
        assert toy.log_prob(sentence, start) > -math.inf
        verdict = toy.check(sentence, start)
        assert verdict.grammatical
        assert not verdict.held_out
        assert verdict.copied == verdict.has_quotation == ("“" in sentence)


@pytest.mark.parametrize("start", toy.EDITIONS)
def test_alphabet_and_longest_sentence(start):
    """A sentence is drawn with, and a row has room for, MAX_LENGTH numbers: those of every edition."""
    lengths = [len(sentence) + 1 for sentence in big_sample(start)]
    assert max(lengths) == toy.MAX_LENGTH == 25
    assert "".join(sorted(set("".join(big_sample(start))))) == toy.alphabet(start)
    assert len(toy.alphabet(start)) == {toy.START: 96, toy.FIRST_EDITION: 90}[start]
    assert toy.alphabet() == toy.ALPHABET


@pytest.mark.parametrize(
    ("pattern", "probability"),
    [
        ("“", QUOTES),
        ("^.+用", TRADES),
        ("^the", SCENES),
        ("^Tom", 1 / 8),
        ("笑着说：", QUOTES / 5),
        ("^(小.|老王|奶奶|Tom|Amy)说：“", QUOTES / 5),
        ("“鱼想", QUOTES / 100),
        ("爱月”", QUOTES / 100),
        ("“鱼想海", QUOTES / 900),
        ("星星也说", QUOTES / 4),
        ("[一两三几]只.*换", TRADES * 6 / 15),
        ("换.*朵.*云", TRADES / 15),
        ("三.*换.*三", TRADES / 16),
        ("^[我你他她猫狗]", LIKINGS),
        ("^我", LIKINGS / 6),
        ("^我喜欢猫$", LIKINGS / 18),
        ("^猫喜欢我$", LIKINGS / 48),
        ("^.爱.$", LIKINGS / 2),
        (r"^the \w+s .*s \w+$", SCENES / 2 * 8 / 10),
        ("yawns$", SCENES / 16),
        (" by Amy ", SCENES / 40),
    ],
)
def test_frequencies_in_a_sample(pattern, probability):
    hits = sum(bool(re.search(pattern, sentence)) for sentence in big_sample())
    n = len(big_sample())
    assert abs(hits - n * probability) < 4.5 * math.sqrt(n * probability * (1 - probability))


def test_a_seed_gives_the_same_sentences_and_another_seed_others():
    def draw(seed, held_out):
        return toy.sample(np.random.default_rng(seed), 50, held_out=held_out)

    for held_out in (False, True):
        assert draw(3, held_out) == draw(3, held_out) != draw(4, held_out)
    rng = np.random.default_rng(3)
    assert toy.sample(rng, 50) != toy.sample(rng, 50)
    assert toy.sample(rng, 0) == toy.sample(rng, 0, held_out=True) == []


@pytest.mark.parametrize(
    ("held_out", "digest"),
    [
        (False, "48ff790f6952b1648b5350eea718d031f65e04e6252211b4fe40f3318e27d09a"),
        (True, "50dde5d205baa1983bf08c99cec83e822b34e11a903c33d5d44c69e4b642babb"),
    ],
)
def test_the_first_edition_is_drawn_as_it_was_when_it_was_the_only_one(held_out, digest):
    sentences = toy.sample(np.random.default_rng(11), 2000, held_out=held_out, start=toy.FIRST_EDITION)
    assert hashlib.sha256("\n".join(sentences).encode()).hexdigest() == digest
    assert sentences != toy.sample(np.random.default_rng(11), 2000, held_out=held_out)


# What is held out
# ----------------


def quoted(sentence):
    return re.search("“(.*)”", sentence)[1]


def test_training_never_quotes_what_is_held_out_but_every_pair_of_neighbours():
    heard = [quoted(sentence) for sentence in big_sample() if "“" in sentence]
    held_out = {
        grammar.ANIMALS[i] + grammar.ACTIONS[j] + grammar.THINGS[k]
        for i, j, k in product(range(10), repeat=3)
        if grammar.is_held_out(i, j, k)
    }
    assert len(held_out) == 55
    assert not held_out & set(heard)
    assert {said[:2] for said in heard} == {a + b for a, b in product(grammar.ANIMALS, grammar.ACTIONS)}
    assert {said[1:] for said in heard} == {a + b for a, b in product(grammar.ACTIONS, grammar.THINGS)}


@pytest.mark.parametrize("start", toy.EDITIONS)
def test_held_out_samples(start):
    sentences = toy.sample(np.random.default_rng(7), 4000, held_out=True, start=start)
    assert len(sentences) == 4000
    for sentence in sentences:
        assert toy.check(sentence, start) == toy.Verdict(True, True, True, True)
        assert toy.log_prob(sentence, start) == -math.inf
    often = Counter(map(quoted, sentences))
    assert len(often) == 55
    assert abs(np.array(list(often.values())) - 4000 / 55).max() < 5 * math.sqrt(4000 / 55)


# Wrong sentences
# ---------------


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "the",
        "the cats under Tom sings",  # wrong number
        "the cat under owls sing",  # agrees with the noun between
        "the cat under owls sing s",
        "The cat under owls sings",
        "the cat under owls sings ",
        "the cat under owls sings\n",
        "the cat under owls sings\nthe cat under owls sings",
        "the cat under owls",
        "小明用三本爱听雨的猫换了一本会唱歌的书",  # wrong measure word
        "小明用三只爱听雨的猫换了一只会唱歌的书",
        "小明用三只爱听雨的猫换了",
        "小明用三只爱听雨的猫换了一本会唱歌的",
        "小明用只爱听雨的猫换了一本会唱歌的书",
        "奶奶笑着说：“鱼想海”，大家也说：「鱼想」",
        "奶奶笑着说：“鱼想海”，大家也说：「想鱼海」",
        "奶奶笑着说：“鱼想海”，大家也说：“鱼想海”",
        "奶奶笑着说：“鱼想海”，大家也说：「鱼想海",
        "奶奶笑着说：“鱼想海”",
        "奶奶笑着笑着说：“鱼想海”，大家也说：「鱼想海」",
        "奶奶说：“鱼想海”，奶奶也说：「鱼想海」",
        "我喜欢",
        "我 喜欢 猫",  # Chinese is written without spaces
        "我喜欢我",
        "我喜欢她",
        "猫喜欢狗",
        "猫爱狗",
        "我喜欢鱼",
        "我喜欢猫，猫也喜欢我",
    ],
)
def test_wrong_sentences(wrong):
    assert not toy.check(wrong).grammatical
    assert toy.log_prob(wrong) == -math.inf


def test_a_broken_copy_is_grammatical_but_not_copied():
    broken = "奶奶笑着说：“鱼想海”，大家也说：「鱼想山」"
    assert toy.check(broken) == toy.Verdict(grammatical=True, has_quotation=True, copied=False, held_out=False)
    assert toy.log_prob(broken) == -math.inf


def test_an_illformed_copy_counts_as_a_quotation_not_copied():
    assert toy.check("奶奶说：“鱼想海”，大家也说：「鱼想」") == toy.Verdict(False, True, False, False)
    assert toy.check("奶奶说：“鱼鱼鱼”，大家也说：「鱼鱼鱼」") == toy.Verdict(False, True, False, False)


@pytest.mark.parametrize("start", toy.EDITIONS)
def test_mutated_sentences_are_judged_as_a_regular_expression_judges_them(start):
    """A character changed, dropped, doubled or swapped, anywhere; most of it is wrong, some of it is not."""
    opinion, rng, wrong = second_opinion(start), np.random.default_rng(5), 0
    for sentence in big_sample()[:200]:
        for i, character in enumerate(sentence):
            before, after = sentence[:i], sentence[i + 1 :]
            other = toy.ALPHABET[rng.integers(len(toy.ALPHABET))]
            swapped = before + after[:1] + character + after[1:]
            for mutant in (before + other + after, before + after, before + 2 * character + after, swapped):
                verdict = toy.check(mutant, start)
                assert verdict.grammatical == bool(opinion.fullmatch(mutant)), mutant
                sayable = not verdict.has_quotation or (verdict.copied and not verdict.held_out)
                assert (toy.log_prob(mutant, start) > -math.inf) == (verdict.grammatical and sayable), mutant
                wrong += not verdict.grammatical
    assert wrong > 12_000


# An n-gram is not enough
# -----------------------


class KneserNey:
    """An interpolated Kneser-Ney model of characters; a text begins with `order - 1` end marks."""

    def __init__(self, sentences, order, discount=0.5):
        self.order, self.discount = order, discount
        grams = Counter(text[p : p + order] for text in map(self.pad, sentences) for p in range(len(text) - order + 1))
        self.levels = []
        for _ in range(order):
            total, kinds = Counter(), Counter()
            for gram, n in grams.items():
                total[gram[:-1]] += n
                kinds[gram[:-1]] += 1
            self.levels.insert(0, (grams, total, kinds))
            grams = Counter(gram[1:] for gram in grams)  # in how many contexts it occurs

    def pad(self, sentence):
        return toy.END * (self.order - 1) + sentence + toy.END

    @cache  # noqa: B019
    def prob(self, gram):
        p = 1 / (len(toy.ALPHABET) + 1)
        for n, (grams, total, kinds) in enumerate(self.levels):
            context, whole = gram[self.order - 1 - n : -1], gram[self.order - 1 - n :]
            if not total[context]:
                break
            seen = max(grams[whole] - self.discount, 0)
            p = (seen + self.discount * kinds[context] * p) / total[context]
        return p

    def loss(self, sentences):
        grams = [t[p : p + self.order] for t in map(self.pad, sentences) for p in range(len(t) - self.order + 1)]
        return -sum(math.log(self.prob(gram)) for gram in grams) / len(grams)


def test_a_character_5_gram_stays_far_above_the_floor():
    model = KneserNey(toy.sample(np.random.default_rng(1), 50_000), order=5)
    contexts = [t[p : p + 4] for t in map(model.pad, big_sample()[:3]) for p in range(10)]
    for context in contexts:  # it is a probability distribution, or the comparison means nothing
        assert sum(model.prob(context + c) for c in toy.ALPHABET + toy.END) == pytest.approx(1, abs=1e-9)
    loss = model.loss(big_sample()[:3000])
    assert 1.25 * toy.entropy_floor() < loss < 1.6 * toy.entropy_floor()
