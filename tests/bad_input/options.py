"""Options with values out of range, of no sense, in conflict, or for another kind of run."""

from tests.bad_input.case import Case, Draw, Kinds, Place, Refused

KINDS = Kinds()

ASKED = {
    "translate": ["translate", "GOOD/translation", "ab ba"],
    "evaluate": ["evaluate", "GOOD/translation", "--source", "GOOD/data/few.source", "--target", "GOOD/data/few.target"],
    "compare": ["compare", "GOOD/translation", "GOOD/translation", "--source", "GOOD/data/few.source", "--target", "GOOD/data/few.target"],
    "score": ["score", "GOOD/language", "--text", "GOOD/data/text.txt"],
    "generate": ["generate", "GOOD/language", "ab"],
    "fill": ["fill", "GOOD/masked", "ab [MASK]"],
    "classify": ["classify", "GOOD/classification", "ab"],
    "embed": ["embed", "GOOD/embedding", "ab"],
    "compare-attention": ["compare-attention", "GOOD/language", "--text", "ab ba"],
    "train": ["train", "copy", "--out", "out"],
    "recipes": ["recipes", "patterns", "copy"],
    "tokenizer": ["tokenizer", "show", "GOOD/language"],
}
"""A good command line of each command."""

WHOLE = {
    "translate": ["--beam-size", "--n-best", "--max-length"],
    "evaluate": ["--beam-size"],
    "compare": ["--resamples"],
    "generate": ["--num-samples", "--max-new-tokens", "--top-k"],
    "fill": ["--top-k"],
    "compare-attention": ["--repeats"],
    "train": ["--seeds"],
    "recipes": ["--length"],
}
"""Options that take a whole number from 1."""

REAL = {
    "translate": ["--length-penalty"],
    "generate": ["--temperature", "--top-p", "--min-p", "--typical-p", "--repetition-penalty", "--frequency-penalty", "--presence-penalty"],
    "score": ["--start"],
}
"""Options that take a number."""


def asked(command: str, about: str, *more: str, names: tuple[str, ...] = ()) -> Case:
    """Add options to a good command line."""
    return Case(f"{command}: {about}", [*ASKED[command], *more], expects=Refused(names))


def flag_of(draw: Draw, table: dict[str, list[str]]) -> tuple[str, str]:
    """Draw a command and one of its options."""
    command = draw.choice(list(table))
    return command, draw.choice(table[command])


@KINDS.add
def a_whole_number_out_of_range(draw: Draw) -> Case:
    command, flag = flag_of(draw, WHOLE)
    value = draw.choice(["0", "-1", "-0", "-99999999999999999999999"])
    return asked(command, f"{flag} {value}", flag, value, names=(flag,))


@KINDS.add
def no_whole_number(draw: Draw) -> Case:
    command, flag = flag_of(draw, WHOLE)
    value = draw.choice(["1.5", "x", "", " ", "1e3", "0x10", "1_0_", "١٢x", "nan", "true", draw.odd_text(), "9" * 5_000, "-" + "9" * 4_301])
    return asked(command, f"{flag} {value:.30}", flag, value, names=(flag,))


@KINDS.add
def no_number(draw: Draw) -> Case:
    command, flag = flag_of(draw, REAL)
    value = draw.choice(["x", "", "1,5", "0x1", "1e", "--", draw.odd_text(), "1.2.3"])
    return asked(command, f"{flag} {value!r:.30}", flag, value, names=(flag,))


@KINDS.add
def a_number_that_is_not_finite(draw: Draw) -> Case:
    command, flag = flag_of(draw, REAL)
    value = draw.choice(["nan", "inf", "-inf", "1e999", "-1e308"])
    return asked(command, f"{flag} {value}", flag, value)


@KINDS.add
def a_share_out_of_range(draw: Draw) -> Case:
    command, flag = draw.choice(
        [
            ("generate", "--top-p"),
            ("generate", "--min-p"),
            ("generate", "--typical-p"),
            ("generate", "--early-exit-threshold"),
            ("score", "--start"),
        ]
    )
    value = draw.choice(["-0.1", "1.1", "2", "-1", "100", "1e300"])
    return asked(command, f"{flag} {value}", flag, value, names=(flag,))


@KINDS.add
def a_huge_whole_number(draw: Draw) -> Case:
    command, flag = draw.choice(
        [
            ("translate", "--beam-size"),
            ("translate", "--n-best"),
            ("evaluate", "--beam-size"),
            ("compare", "--resamples"),
            ("generate", "--num-samples"),
            ("recipes", "--length"),
            ("compare-attention", "--repeats"),
            ("generate", "--seed"),
            ("compare-attention", "--seed"),
        ]
    )
    value = draw.choice([str(10**30), "9" * 400, str(2**64), str(2**70)])
    return asked(command, f"{flag} {value:.30}", flag, value)


@KINDS.add
def a_word_that_is_no_choice(draw: Draw) -> Case:
    command, flag = draw.choice(
        [
            ("translate", "--too-long"),
            ("translate", "--precision"),
            ("classify", "--too-long"),
            ("embed", "--too-long"),
            ("score", "--document"),
            ("fill", "--precision"),
            ("generate", "--too-long"),
            ("compare-attention", "--too-long"),
            ("score", "--precision"),
        ]
    )
    value = draw.choice(["nothing", "", "FP32", "auto ", "fp64", "split,refuse", draw.odd_text(), "x" * 10_000])
    return asked(command, f"{flag} {value!r:.30}", flag, value, names=(flag,))


@KINDS.add
def arithmetic_that_is_not_there(draw: Draw) -> Case:
    command = draw.choice(["translate", "generate", "fill", "classify", "embed", "compare-attention", "score"])
    return asked(command, "--precision fp16", "--precision", "fp16", names=("precision",))


@KINDS.add
def a_language_of_no_tokenizer(draw: Draw) -> Case:
    word = draw.choice(["xx", "", "english", "EN", "../de", "de de", "zz-ZZ", draw.odd_text(), "x" * 10_000, "\x1b[31m"])
    return asked("evaluate", f"--tokenized {word!r:.30}", "--tokenized", word)


@KINDS.add
def a_target_language_that_is_not_there(draw: Draw) -> Case:
    command, word = draw.choice(["translate", "evaluate", "compare"]), draw.choice(["xx", "", "de", draw.odd_text(), "<2de>"])
    return asked(command, f"--to {word!r:.30}", "--to", word)


@KINDS.add
def numbers_in_a_list(draw: Draw) -> Case:
    flag = draw.choice(["--lengths", "--features", "--ranks", "--windows"])
    value = draw.choice(["0", "-1", "1,x", "1;2", "65537", "9" * 5_000, "1,,99999999", "1.5", "²", "٣,x", draw.odd_text()])
    return asked("compare-attention", f"{flag} {value!r:.30}", flag, value, names=(flag,))


@KINDS.add
def an_unknown_option(draw: Draw) -> Case:
    command = draw.choice(list(ASKED))
    option = draw.choice(["--beem-size", "--outptu", "-x", "--", "---", "--é", "--" + "x" * 10_000, "--json=3", "--\x1b[31m", "-é"])
    more = [option, "unwanted argument", "another"] if option == "--" else [option]
    return asked(command, f"{option:.30}", *more)


@KINDS.add
def an_option_without_its_value(draw: Draw) -> Case:
    command, flag = flag_of(draw, {**WHOLE, "tokenizer": ["--nothing"], "classify": ["--input", "--labeled-data"], "embed": ["--output"]})
    return asked(command, f"{flag} and nothing", flag, names=(flag,))


@KINDS.add
def an_argument_too_many(draw: Draw) -> Case:
    command = draw.choice(["tokenizer", "train", "evaluate", "compare", "compare-attention", "recipes"])
    odd = draw.odd_text().lstrip("-")
    more = [odd, odd] if command == "tokenizer" else [odd]
    return asked(command, "an argument too many", *more)


@KINDS.add
def an_unknown_command(draw: Draw) -> Case:
    command = draw.choice(
        ["trian", "", " ", "Train", "train ", "--", "translate;id", "x" * 10_000, draw.odd_text(), "\udcff", "../train", "main"]
    )
    return Case(f"the command {command!r:.30}", [command, "a"])


@KINDS.add
def an_unknown_command_of_a_command(draw: Draw) -> Case:
    word = draw.choice(["sho", "", "list list", "copyy", draw.odd_text().lstrip("-"), "x" * 5_000])
    return Case(f"the command {word!r:.30}", [draw.choice(["recipes", "tokenizer"]), word, "copy"])


@KINDS.add
def an_unknown_recipe(draw: Draw) -> Case:
    name = draw.choice(
        ["copi", "", " ", "COPY", "copy ", draw.odd_text().lstrip("-/").replace("/", ""), "\udcff", "x" * 10_000, "copy.tml"]
    )
    command = draw.choice(
        [["train", name, "--out", "out"], ["recipes", "show", name], ["recipes", "copy", name, "new.toml"], ["recipes", "patterns", name]]
    )
    return Case(f"the recipe {name!r:.30}", command)


@KINDS.add
def a_run_of_another_task(draw: Draw) -> Case:
    command = draw.choice(["translate", "generate", "fill", "classify"])
    own = {
        "translate": {"translation"},
        "generate": {"language", "instruction"},
        "fill": {"masked"},
        "classify": {"classification", "images"},
    }[command]
    other = draw.choice(
        [run for run in ("translation", "language", "masked", "classification", "embedding", "instruction", "images") if run not in own]
    )
    return Case(f"{command} with a run of {other}", [command, f"GOOD/{other}", "ab [MASK]"], expects=Refused(("expected a run",)))


@KINDS.add
def a_run_of_another_task_with_files(draw: Draw) -> Case:
    command = draw.choice(
        [
            ["score", "GOOD/language", "--source", "GOOD/data/few.source", "--target", "GOOD/data/few.target"],
            ["score", "GOOD/translation", "--text", "GOOD/data/text.txt"],
            ["evaluate", "GOOD/language", "--source", "GOOD/data/few.source", "--target", "GOOD/data/few.target"],
            ["compare", "GOOD/masked", "GOOD/translation", "--source", "GOOD/data/few.source", "--target", "GOOD/data/few.target"],
            ["classify", "GOOD/embedding", "--labeled-data", "GOOD/data/labelled.tsv"],
            ["embed", draw.choice(["GOOD/language", "GOOD/translation", "GOOD/images", "GOOD/instruction"]), "ab"],
            ["compare-attention", "GOOD/images", "--text", "ab"],
        ]
    )
    return Case(f"{command[0]} with {command[1]}", command)


@KINDS.add
def no_run(draw: Draw) -> Case:
    command = draw.choice(["translate", "generate", "fill", "classify", "embed"])
    name = draw.choice(
        [
            "missing",
            "",
            "empty",
            "file",
            "/dev/null",
            "/dev/zero",
            "x" * 300,
            "x/" * 2_000,
            "\udcff",
            draw.odd_text().lstrip("-"),
            "GOOD/data",
        ]
    )

    def prepare(place: Place) -> None:
        (place.here / "empty").mkdir()
        place.write("file", "text")

    return Case(f"{command} with the run {name!r:.30}", [command, name, "ab [MASK]"], prepare)


@KINDS.add
def options_in_conflict(draw: Draw) -> Case:
    command = draw.choice(
        [
            ["translate", "GOOD/translation", "ab", "--input", "GOOD/data/few.source"],
            ["generate", "GOOD/language", "ab", "--input", "GOOD/data/text.txt"],
            ["fill", "GOOD/masked"],
            ["fill", "GOOD/masked", "ab [MASK]", "--input", "GOOD/data/text.txt"],
            ["classify", "GOOD/classification"],
            ["classify", "GOOD/classification", "ab", "--labeled-data", "GOOD/data/labelled.tsv"],
            ["classify", "GOOD/images", "GOOD/data/images/dark/0.png", "--too-long", "window"],
            ["embed", "GOOD/embedding"],
            ["embed", "GOOD/embedding", "--input", "GOOD/data/text.txt"],
            ["score", "GOOD/translation", "--source", "GOOD/data/few.source"],
            ["score", "GOOD/language"],
            ["score", "GOOD/language", "--text", "GOOD/data/text.txt", "--to", "de"],
            ["score", "GOOD/translation", "--source", "a", "--target", "b", "--overlap", "3"],
            ["compare-attention", "GOOD/language"],
            ["compare-attention", "GOOD/language", "--text", "a", "--input", "GOOD/data/text.txt"],
            ["translate", "GOOD/translation", "ab", "--min-length", "9", "--max-length", "3"],
            ["generate", "GOOD/language", "ab", "--min-new-tokens", "9", "--max-new-tokens", "3"],
            ["translate", "GOOD/translation", "ab", "--beam-size", "1", "--n-best", "5"],
            ["train", "copy", "--source", "a", "--out", "out"],
            ["train", "copy", "--valid-text", "a", "--out", "out"],
            ["train", "copy", "--images", "a", "--text", "b", "--out", "out"],
            ["train", "text-bpe", "--suffix", ".py", "--out", "out"],
        ]
    )
    return Case(" ".join(command), command)


@KINDS.add
def text_that_is_no_text_for_the_model(draw: Draw) -> Case:
    command = draw.choice(
        [
            ["fill", "GOOD/masked", "no gap"],
            ["fill", "GOOD/masked", ""],
            ["fill", "GOOD/masked", "[MASK] " + "ab " * 100_000, "--too-long", "refuse"],
            ["translate", "GOOD/translation", "ab " * 1_000, "--too-long", "refuse"],
            ["generate", "GOOD/language", "ab " * 1_000, "--too-long", "refuse"],
            ["classify", "GOOD/classification", "ab " * 1_000, "--too-long", "refuse"],
            ["embed", "GOOD/embedding", "ab", "ab " * 1_000, "--too-long", "refuse"],
            ["compare-attention", "GOOD/language", "--text", ""],
            ["compare-attention", "GOOD/language", "--text", "ab " * 1_000, "--too-long", "refuse"],
        ]
    )
    return Case(f"{command[0]}: {command[2]:.20}, {' '.join(command[3:])[-40:]}", command)


@KINDS.add
def windows_that_do_not_move(draw: Draw) -> Case:
    value = draw.choice(["32", "1000", str(10**30)])
    return asked("score", f"--overlap {value}", "--overlap", value)


@KINDS.add
def a_stop_that_is_none(draw: Draw) -> Case:
    stop = draw.choice([[""], ["a", ""]])
    return asked("generate", f"--stop {stop}", *(part for each in stop for part in ("--stop", each)))
