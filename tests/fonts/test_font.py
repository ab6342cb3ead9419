"""The font that the package ships: what it holds, what it is called, that it goes where the package goes."""

import configparser
import os
import subprocess
import sys
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

import numpy_minimind as nm
from numpy_minimind import fonts
from numpy_minimind.data import toy_language
from tests.fonts import make_font

font_manager = pytest.importorskip("matplotlib.font_manager")

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "numpy_minimind" / "fonts"
TOKENIZER = os.environ.get("NUMPY_MINIMIND_TOKENIZER_DIR")


@pytest.fixture(scope="module")
def font():
    return font_manager.get_font(str(make_font.FONT))


def characters_of(*patterns: str) -> set[str]:
    return set("".join(path.read_text(encoding="utf-8") for pattern in patterns for path in ROOT.glob(pattern)))


def vocabulary() -> set[str]:
    tokenizer = nm.load_tokenizer(TOKENIZER)
    return set("".join(tokenizer.decode([i]) for i in range(tokenizer.vocab_size)))


# Read when the test runs: what is asked for is asked for today.
NEEDED = {
    "the toy language": lambda: set(toy_language.ALPHABET),
    "docs/zh": lambda: characters_of("docs/zh/**/*.md"),
    "the demos": lambda: characters_of("demos/**/*.py"),
    "the pictures": lambda: characters_of("numpy_minimind/plotting.py"),
    "what one writes": lambda: (
        set("“”‘’「」『』《》，。：；？！、（）…—·␣↵⇥✓✗←↑→↓αβγδεθλμνπρστφωΔΣ我你他她喜欢") - {"\n"}
    ),
}


@pytest.mark.parametrize("source", NEEDED)
def test_no_character_is_missing(source, font):
    assert not missing(NEEDED[source](), font), "add them: see tests/fonts/make_font.py"


@pytest.mark.skipif(not TOKENIZER, reason="NUMPY_MINIMIND_TOKENIZER_DIR is not set")
def test_no_chinese_character_of_the_vocabulary_is_missing(font):
    chinese = {character for character in vocabulary() if "\u4e00" <= character <= "\u9fff"}
    assert len(chinese) > 1200
    assert not missing(chinese, font), "add them: see tests/fonts/make_font.py"


def missing(characters: set[str], font) -> str:
    """Return what one can see of these and neither our font nor matplotlib's has."""
    latin = font_manager.get_font(font_manager.findfont(fonts.LATIN))
    drawn = font.get_charmap().keys() | latin.get_charmap().keys()
    return " ".join(sorted(c for c in characters if c.isprintable() and ord(c) not in drawn))


def test_the_font_has_what_the_list_says(font):
    assert set(map(chr, font.get_charmap())) == make_font.LATIN | make_font.listed()


def test_the_list_is_sorted_and_grows_by_what_is_added(tmp_path, monkeypatch):
    before = make_font.LIST.read_text(encoding="utf-8")
    monkeypatch.setattr(make_font, "LIST", tmp_path / "characters.txt")
    make_font.write_list(set(before) - {"\n"})
    assert make_font.LIST.read_text(encoding="utf-8") == before
    (tmp_path / "page.md").write_text("abc 龘\t的\u200b\n", encoding="utf-8")
    assert make_font.main(["--add", str(tmp_path / "page.md")]) == 0
    after = make_font.LIST.read_text(encoding="utf-8")
    assert set(after) - set(before) == {"龘"} and not set(before) - set(after)


def test_the_script_says_in_one_line_that_fonttools_is_missing(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "fontTools", None)
    assert make_font.main(["anything.ttc"]) == 2
    said = capsys.readouterr()
    assert said.err == "error: fonttools is not installed: pip install fonttools\n" and said.out == ""


def test_it_is_small():
    assert make_font.FONT.stat().st_size <= 330_000


def test_the_name_is_no_other_font_s_and_none_that_is_reserved(font):
    names = {key[3]: text.decode("utf-16-be") for key, text in font.get_sfnt().items() if key[0] == 3}
    assert font.family_name == names[1] == fonts.FAMILY
    assert not any(word in names[i].lower() for i in (1, 2, 3, 4, 6) for word in ("source", "noto", "adobe"))
    assert not any(word in font.postscript_name.lower() for word in ("source", "noto"))
    assert "Adobe" in names[0] and "SIL Open Font License" in names[13]  # these two have to stay


def test_the_licence_lies_beside_it():
    text = (FOLDER / "OFL.txt").read_text(encoding="utf-8")
    assert "SIL OPEN FONT LICENSE Version 1.1" in text and "with Reserved Font Name 'Source'" in text
    assert "Copyright 2014-2021 Adobe" in text and "Modified Version of Noto Sans CJK SC" in text


def test_font_and_licence_are_in_the_wheel():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    patterns = setup["options.package_data"]["numpy_minimind.fonts"].split(", ")
    files = {path.name for path in FOLDER.iterdir() if path.is_file() and path.suffix != ".py"}
    assert files == {"numpy-minimind-han.otf", "OFL.txt"}
    assert all(any(fnmatch(name, pattern) for pattern in patterns) for name in files)


# -- choosing -----------------------------------------------------------------------------------------------------


def test_our_font_is_asked_after_matplotlib_s():
    assert fonts.choose("abc 我喜欢猫\n", font_manager) == ([fonts.LATIN, fonts.FAMILY], {})


def test_the_machine_s_fonts_are_asked_for_what_both_lack():
    segment = "\u2313"  # in DejaVu Sans Mono, which comes with matplotlib
    families, stand_ins = fonts.choose(f"我{segment}", font_manager)
    assert families[:2] == [fonts.LATIN, fonts.FAMILY] and len(families) == 3 and not stand_ins


@pytest.fixture
def other_fonts(monkeypatch):
    """A function that sets the fonts of the machine beside DejaVu Sans and ours."""

    def set_fonts(*entries):
        manager = font_manager.fontManager
        fonts.choose("x", font_manager)
        kept = [font for font in manager.ttflist if font.name in (fonts.LATIN, fonts.FAMILY)]
        monkeypatch.setattr(manager, "ttflist", [*kept, *entries])

    return set_fonts


def entry(path, name, style="normal", weight=400, stretch="normal"):
    return font_manager.FontEntry(
        str(path), name=name, style=style, variant="normal", weight=weight, stretch=stretch, size="scalable"
    )


def test_a_character_without_a_glyph_has_a_stand_in_and_one_that_cannot_be_seen_has_nothing(other_fonts):
    other_fonts()
    families, stand_ins = fonts.choose("我龘\U00020bb7\U0001fae8\u2066\U000e0100\ud83d\x07", font_manager)
    assert families == [fonts.LATIN, fonts.FAMILY]
    seen = dict.fromkeys("\x07龘\ud83d\U00020bb7\U0001fae8", fonts.STAND_IN)
    assert stand_ins == {**seen, "\u2066": "", "\U000e0100": ""}


def test_a_font_that_is_gone_or_damaged_is_passed_over(tmp_path, other_fonts):
    (tmp_path / "damaged.ttf").write_bytes(b"\0\1\0\0 and no more")
    other_fonts(entry(tmp_path / "gone.ttf", "Gone"), entry(tmp_path / "damaged.ttf", "SimHei"))
    assert fonts.choose("龘", font_manager) == ([fonts.LATIN, fonts.FAMILY], {"龘": fonts.STAND_IN})


class Glyphs:
    """Stands in for an opened font."""

    def __init__(self, outlines):
        self.outlines = outlines

    def get_charmap(self):
        return {ord(c): i for i, c in enumerate(self.outlines)}

    def load_char(self, code):
        self.loaded = self.outlines[chr(code)]
        if self.loaded is None:
            raise RuntimeError("no outlines")

    def get_path(self):
        return self.loaded, []


@pytest.mark.parametrize(
    ("outlines", "found"),
    [
        ({"龘": [(0, 0)], "a": [(0, 0)]}, True),
        ({"龘": [(0, 0)], chr(fonts.NO_CHARACTER): [(0, 0)]}, False),  # a last resort, with a box for everything
        ({"龘": []}, False),  # only colours
        ({"龘": None}, False),  # only pixels
    ],
)
def test_a_font_counts_only_for_what_it_would_really_show(tmp_path, other_fonts, monkeypatch, outlines, found):
    other_fonts(entry("odd.ttf", "Odd"))
    opened = font_manager.get_font
    monkeypatch.setattr(
        font_manager, "get_font", lambda path, *rest: Glyphs(outlines) if path == "odd.ttf" else opened(path, *rest)
    )
    families, stand_ins = fonts.choose("龘", font_manager)
    assert ("Odd" in families, "龘" in stand_ins) == (found, not found)


def test_of_a_family_the_plain_file_is_asked():
    fancy = [entry("s", "X", "italic"), entry("b", "X", weight="bold"), entry("n", "X", stretch="condensed")]
    plain, same = entry("plain", "X"), entry("the same again", "X")
    for entries in ([plain, same, *fancy], [*fancy, plain, same], [*fancy[:2], plain, fancy[2], same]):
        assert fonts._plainest(entries, font_manager.weight_dict) == {"X": "plain"}


def test_matplotlib_is_told_once_and_its_settings_stay():
    import matplotlib

    before = dict(matplotlib.rcParams)
    for _ in range(2):
        fonts.choose("猫", font_manager)
    assert [font.fname for font in font_manager.fontManager.ttflist if font.name == fonts.FAMILY] == [
        str(make_font.FONT)
    ]
    assert dict(matplotlib.rcParams) == before


BARE = """
import warnings; warnings.simplefilter("error", UserWarning)
from matplotlib import font_manager
from numpy_minimind import fonts, plotting
assert ".zip" in plotting.__file__
plotting.loss_curve("loss.png", [{"step": 1, "ce_loss": 2.0}], title="红楼梦.txt corpus")
print(*fonts.choose("红楼梦", font_manager)[1])
"""


def test_from_a_zip_file_without_home_folder_font_cache_or_programs(tmp_path):
    with zipfile.ZipFile(tmp_path / "package.zip", "w") as package:
        for path in (ROOT / "numpy_minimind").rglob("*"):
            if path.suffix in (".py", ".otf", ".txt"):
                package.write(path, path.relative_to(ROOT))
    (tmp_path / "file").touch()
    nowhere = str(tmp_path / "file" / "below a file")  # not even root can write there
    environment = {"PYTHONPATH": "package.zip", "HOME": nowhere, "MPLCONFIGDIR": nowhere, "PATH": nowhere}
    environment |= {name: os.environ[name] for name in ("SYSTEMROOT", "TMPDIR") if name in os.environ}
    command = [sys.executable, "-c", BARE]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
    assert "glyph" not in done.stderr.lower() and "findfont" not in done.stderr
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
