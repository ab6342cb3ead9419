"""Texts in pictures: every character has a glyph or is named, nothing is mathematics that was not meant to be."""

import itertools

import numpy as np
import pytest

from numpy_minimind.checking.lab.kill_matrix import STRONG, WEAK
from numpy_minimind.data import toy_language

pytest.importorskip("matplotlib")
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.text import Text

from numpy_minimind import fonts, plotting

LINE = "no glyph here for: "
METRICS = [{"step": step, "ce_loss": 3 / step, "val_loss": 4 / step} for step in range(1, 5)]
STRANGE = {
    "Chinese": "红楼梦.txt",
    "Chinese marks": "“引号”，「引号」：《书》、……——？！",
    "mathematics": "a_1 $x^2$ \\frac{1}{2}.txt",
    "mathematics broken off": "$\\frac{ $ % # & ~",
    "right to left": "نص עברית.txt",
    "accents": "e\u0301 \u0301 Ångström naïve",
    "lines": "a\nb\r\nc\td\u2028e",
    "nothing": "",
    "spaces": " \u00a0\u3000 ",
    "rare": "龘\U00020bb7.txt",
    "Japanese": "日本語テキスト.txt",
    "emoji": "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f \U0001fae8 \U0001f1e8\U0001f1f3",
    "control": "a\x00b\x1b[0m\x7f\x85",
    "no text at all": "\ud83d \udce4 \ue000 \U0010ffff",
    "marks of direction": "\u202eabc\u2066\ufeff\u200b",
}


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved, drawn as on a machine with no fonts but those of matplotlib and ours."""
    figures, savefig = [], Figure.savefig
    fonts.choose("x", font_manager)
    ours = [
        font
        for font in font_manager.fontManager.ttflist
        if font.name.startswith(("DejaVu", "STIX", "cm", fonts.FAMILY))
    ]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", ours)
    monkeypatch.setattr(Figure, "savefig", lambda fig, *a, **k: (figures.append(fig), savefig(fig, *a, **k)))
    return figures


def texts(fig) -> list[str]:
    return [text.get_text() for text in fig.findobj(Text) if text.get_visible() and text.get_text()]


def line(fig) -> str:
    """Return what the picture says it lacks."""
    return "".join(text.replace("\n", " ").partition(LINE)[2] for text in texts(fig))


@pytest.mark.parametrize("kind", STRANGE)
def test_a_title_of_any_characters(kind, drawn, tmp_path, capfd):
    """A warning of matplotlib's would be an error here, and a word of its log would be seen."""
    plotting.loss_curve(tmp_path / "a.png", METRICS, title=f"{STRANGE[kind]} corpus")
    (title,) = [text for text in texts(drawn[0]) if text.endswith("corpus")]
    kept = {c for c in STRANGE[kind] if not c.isspace()}
    lacking = {c for c in kept if f"U+{ord(c):04X}" in line(drawn[0])}
    assert bool(lacking) == (fonts.STAND_IN in title) == (LINE in "".join(texts(drawn[0])))
    assert set(title) >= {c for c in kept - lacking if c.isprintable() and not "\ufe00" <= c <= "\ufe0f"}
    assert lacking.isdisjoint(title)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("kind", ["rare", "Japanese", "emoji", "control", "no text at all"])
def test_what_no_font_has_is_named(kind, drawn, tmp_path):
    plotting.loss_curve(tmp_path / "a.png", METRICS, title=STRANGE[kind])
    named = {"rare": "U+9F98, U+20BB7", "Japanese": "U+30AD, U+30B9", "emoji": "U+1F1E8, U+1F1F3"}
    named |= {"control": "U+0000, U+001B, U+007F", "no text at all": "U+D83D, U+DCE4, U+E000, U+10FFFF"}
    assert line(drawn[0]).startswith(named[kind])


@pytest.mark.parametrize("kind", ["Chinese", "Chinese marks", "mathematics", "right to left", "accents", "spaces"])
def test_where_every_character_has_a_glyph_nothing_is_said(kind, drawn, tmp_path):
    plotting.attention_map(tmp_path / "a.png", np.eye(2), ["我", STRANGE[kind]], title=STRANGE[kind])
    assert LINE not in "".join(texts(drawn[0])) and fonts.STAND_IN not in "".join(texts(drawn[0]))


def test_a_long_line_is_broken_and_ends(drawn, tmp_path):
    names = "".join(map(chr, range(0x20000, 0x20014)))
    plotting.error_heat_map(tmp_path / "a.png", {"x": {"x": 1e-9}}, ["x"], title=names)
    assert line(drawn[0]).startswith("U+20000, U+20001") and line(drawn[0]).endswith("U+20007, and 12 more")
    (said,) = [text for text in drawn[0].findobj(Text) if LINE[:8] in text.get_text()]
    assert said.get_window_extent().x1 < drawn[0].bbox.x1


ODD = "龘$_{x^\\"
EACH_PICTURE = {
    "loss_curve": lambda path: plotting.loss_curve(path, METRICS, title=ODD),
    "attention_map": lambda path: plotting.attention_map(path, np.eye(2), ["a", ODD], title="x"),
    "attention_map's title": lambda path: plotting.attention_map(path, np.eye(2), ["a", "b"], title=ODD),
    "step_parts": lambda path: plotting.step_parts(
        path, {ODD: {"products": 1, "attention": 1, "element_wise": 1, "optimizer": 1}}
    ),
    "crossover": lambda path: plotting.crossover(path, [1, 2], {"CPU": [1, 2], ODD: [1, 3]}),
    "step_sizes": lambda path: plotting.step_sizes(
        path, steps=[1e-12, 1e-1], chosen=1e-5, curves={ODD: [1e-3, 1e-9]}, float32=("x", [1e-2, 1e-3])
    ),
    "error_heat_map": lambda path: plotting.error_heat_map(path, {ODD: {"x": 1e-9}}, ["x"]),
    "error_heat_map's columns": lambda path: plotting.error_heat_map(path, {"x": {ODD: 1e-9}}, [ODD], title="x"),
    "kill_matrix": lambda path: plotting.kill_matrix(path, {ODD: {STRONG[0]: True}}, {ODD: "x"}, [], STRONG, WEAK),
}


@pytest.mark.parametrize("picture", EACH_PICTURE)
def test_every_picture_names_what_it_lacks_and_takes_a_dollar_for_a_dollar(picture, drawn, tmp_path, capfd):
    EACH_PICTURE[picture](tmp_path / "a.png")
    assert line(drawn[0]) == "U+9F98"
    assert any(fonts.STAND_IN + "$" in text for text in texts(drawn[0]))
    (said,) = [text.get_window_extent() for text in drawn[0].findobj(Text) if LINE in text.get_text()]
    assert not any(said.overlaps(part.get_window_extent()) for part in [*drawn[0].legends, *drawn[0].axes])
    assert capfd.readouterr().err == ""


def test_powers_of_ten_stay_mathematics(drawn, tmp_path):
    EACH_PICTURE["step_sizes"](tmp_path / "a.png")
    ticks = [label for label in drawn[0].axes[0].get_yticklabels() if label.get_text()]
    assert ticks and all(label.get_parse_math() and "10^{" in label.get_text() for label in ticks)


def test_settings_of_the_machine_change_no_text(drawn, tmp_path, monkeypatch, capfd):
    import matplotlib

    mine = {"text.usetex": True, "font.family": ["no such font"], "axes.titleweight": "bold"}
    for name, value in mine.items():
        monkeypatch.setitem(matplotlib.rcParams, name, value)
    plotting.attention_map(tmp_path / "a.png", np.eye(2), ["我", "a"], title="红楼梦 50%")
    assert capfd.readouterr().err == "" and LINE not in "".join(texts(drawn[0]))
    assert {name: matplotlib.rcParams[name] for name in mine} == mine


# -- the attention map --------------------------------------------------------------------------------------------

TOKENS = {
    "": "(empty)",
    " ": "␣",
    " the": "␣the",
    "\n\n": "↵↵",
    "\t": "⇥",
    "\u3000": "U+3000",
    "\u200b": "U+200B",
    "\u202e": "U+202E",
    "\r": "U+000D",
    "\x1b": "U+001B",
    "\ud83d": "U+D83D",
    "\u0301": "◌\u0301",
    "e\u0301": "e\u0301",
    "喜欢": "喜欢",
    "$x_1$": "$x_1$",
    "<|im_start|>": "<|im_start|>",
    "a" * 1000: "aaaaaa…aaaaa",
    "猫" * 1000: "猫猫猫…猫猫",
    chr(0xFFFD): "\ufffd",
    "龘": "\ufffd",
    "\U0001f468\u200d\U0001f469": "\ufffd\u200d\ufffd",
}


def test_every_token_is_to_be_seen(drawn, tmp_path, capfd):
    plotting.attention_map(tmp_path / "a.png", np.eye(len(TOKENS)), list(TOKENS), title="x")
    ax = drawn[0].axes[0]
    assert [label.get_text() for label in ax.get_xticklabels()] == list(TOKENS.values())
    assert [label.get_text() for label in ax.get_yticklabels()] == list(TOKENS.values())
    assert line(drawn[0]) == "U+9F98, U+1F468, U+1F469"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("count", [1, 23, 60, 300])
def test_no_token_is_written_over_another(count, drawn, tmp_path):
    """And what is written in Chinese stands upright."""
    tokens = [("猫", "的", "a", "喜欢", " the", "<|im_end|>")[i % 6] if count < 60 else "猫" for i in range(count)]
    plotting.attention_map(tmp_path / "a.png", np.eye(count), tokens, title="x")
    ax = drawn[0].axes[0]
    for labels in (ax.get_xticklabels(), ax.get_yticklabels()):
        boxes = [label.get_window_extent() for label in labels]
        assert len(boxes) == count or len(boxes) > 45
        assert not any(a.overlaps(b) for a, b in itertools.pairwise(boxes))
    assert all(label.get_rotation() == 0 for label in ax.get_xticklabels() if label.get_text() == "猫")


@pytest.mark.parametrize(
    "title", ["a" * 300, "红" * 300, "Xy" * 100, "红楼梦 " + "b" * 100 + ".txt corpus, model of it"]
)
def test_a_long_title_keeps_its_ends_and_stays_in_the_picture(title, drawn, tmp_path):
    plotting.loss_curve(tmp_path / "a.png", METRICS, title=title)
    (written,) = [text for text in drawn[0].findobj(Text) if "…" in text.get_text()]
    start, end = written.get_text().split("…")
    assert title.startswith(start) and title.endswith(end) and min(len(start), len(end)) > 10
    assert written.get_window_extent().x1 < drawn[0].bbox.x1


def test_a_sentence_of_the_toy_language_is_drawn_in_its_own_characters(drawn, tmp_path):
    sentence = "\n" + toy_language.sample(np.random.default_rng(3), 2)[1]
    plotting.attention_map(tmp_path / "a.png", np.eye(len(sentence)), list(sentence), title="x")
    labels = [label.get_text() for label in drawn[0].axes[0].get_xticklabels()]
    assert labels == ["↵", *sentence[1:]] and any("\u4e00" <= c <= "\u9fff" for c in labels)
    assert LINE not in "".join(texts(drawn[0]))
