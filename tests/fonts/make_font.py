"""Cut the font of the pictures out of Noto Sans CJK: Latin and the characters of characters.txt, under its own name.

    python tests/fonts/make_font.py SOURCE            compare with the font of the package; exit code 1 if it differs
    python tests/fonts/make_font.py SOURCE --write    replace it
    python tests/fonts/make_font.py --add FILE ...    first put what these UTF-8 texts are made of into characters.txt

SOURCE is NotoSansCJK-Regular.ttc of Debian's package fonts-noto-cjk; version 1:20220127+repack1-1 and fonttools 4.68.0
made the font that is stored, and make the same bytes again. Exit code 2 where fonttools is not installed.
"""

import argparse
import importlib.util
import io
import sys
from pathlib import Path

HERE = Path(__file__).parent
LIST = HERE / "characters.txt"
FONT = HERE.parents[1] / "numpy_minimind" / "fonts" / "numpy-minimind-han.otf"
LATIN = {chr(code) for code in (*range(0x20, 0x7F), *range(0xA0, 0x100), 0x3000)}  # and a wide space: no line of a list
SIMPLIFIED_CHINESE = 2  # of the ten fonts in the collection

FAMILY, POSTSCRIPT = "NumPy MiniMind Han", "NumPyMiniMindHan-Regular"
NAMES = {
    1: FAMILY,
    2: "Regular",
    3: f"1.000;{POSTSCRIPT}",
    4: FAMILY,
    5: "Version 1.000",
    6: POSTSCRIPT,
    10: "Made for the pictures of numpy_minimind. A subset of a font by Adobe and Google, version 2.004, renamed.",
}
KEPT_NAMES = (0, 13, 14)  # copyright, licence, its address


def listed() -> set[str]:
    """Return the characters that the list asks for."""
    return set(LIST.read_text(encoding="utf-8")) - {"\n"}


def write_list(characters: set[str]) -> None:
    """Write the list, sorted, a line for each block of 64 code points: a new character changes one line."""
    lines: dict[int, str] = {}
    for character in sorted(characters - LATIN):
        lines[ord(character) // 64] = lines.get(ord(character) // 64, "") + character
    LIST.write_text("\n".join(lines.values()) + "\n", encoding="utf-8")


def make(source: Path) -> bytes:
    """Return the bytes of the font."""
    from fontTools import subset
    from fontTools.ttLib import TTCollection

    # Neither shaping nor vertical writing nor hints: matplotlib uses none of them at these sizes.
    options = subset.Options(
        hinting=False,
        desubroutinize=True,
        layout_features=[],
        bidi_closure=False,
        name_IDs=["*"],
        notdef_outline=True,
    )
    options.drop_tables += ["BASE", "GDEF", "GPOS", "GSUB", "VORG", "vhea", "vmtx"]
    font = TTCollection(source)[SIMPLIFIED_CHINESE]
    font.recalcTimestamp = False
    wanted = LATIN | listed()
    absent = sorted(wanted - set(map(chr, font.getBestCmap())))
    if absent:
        raise SystemExit(f"{source} has no glyph for {' '.join(absent)}: take them out of {LIST}")
    subsetter = subset.Subsetter(options)
    subsetter.populate(unicodes=map(ord, wanted))
    subsetter.subset(font)
    font["cmap"].tables = [t for t in font["cmap"].tables if t.platformID == 3 and t.format != 14]  # no doubles
    rename(font)
    stream = io.BytesIO()
    font.save(stream)
    return stream.getvalue()


def rename(font) -> None:
    """Give the font names that no installed font has; of the old ones copyright and licence stay."""
    table = font["name"]
    kept = {number: table.getDebugName(number) for number in KEPT_NAMES}
    table.names, font["OS/2"].achVendID = [], "NONE"
    for number, name in sorted((kept | NAMES).items()):
        table.setName(name, number, 3, 1, 0x409)
    outlines = font["CFF "].cff
    outlines.fontNames = [POSTSCRIPT]
    top = outlines[0]
    top.FullName = top.FamilyName = FAMILY
    top.Notice = kept[0]
    for number, part in enumerate(top.FDArray):
        part.FontName = f"{POSTSCRIPT}-{number}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", type=Path, metavar="SOURCE")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--add", nargs="+", type=Path, default=[], metavar="FILE")
    args = parser.parse_args(argv)
    if args.add:
        texts = "".join(path.read_text(encoding="utf-8") for path in args.add)
        write_list(listed() | {character for character in texts if character.isprintable()})
    if args.source is None:
        return 0
    if importlib.util.find_spec("fontTools") is None:
        print("error: fonttools is not installed: pip install fonttools", file=sys.stderr)
        return 2
    made = make(args.source)
    if args.write:
        FONT.write_bytes(made)
    same = FONT.exists() and FONT.read_bytes() == made
    print(f"{len(made):,} bytes, {len(LATIN | listed()):,} characters: {'same' if same else 'differs'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
