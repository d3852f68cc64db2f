"""``--set`` with names, values and numbers that no field takes."""

from tests.bad_input.case import Case, Draw, Kinds, Refused
from tests.bad_input.recipes import FIELDS, any_field

KINDS = Kinds()


def with_set(draw: Draw, about: str, *settings: str, names: tuple[str, ...] = ("--set",)) -> Case:
    """Give settings to a command that takes a recipe; recipe copy would train in seconds."""
    sets = [part for each in settings for part in ("--set", each)]
    command = draw.choice(
        [["train", "copy", "--out", "out"], ["recipes", "patterns", "copy"], ["tokenizer", "train", "copy", "--out", "t.json"]]
    )
    return Case(about, [*command, *sets], expects=Refused(names))


@KINDS.add
def no_setting(draw: Draw) -> Case:
    text = draw.choice(
        ["", "=", "==", "=3", "training.max_steps", ".=1", "a.=1", ".a=1", "a..b=1", " =1", "training max_steps 3", "\n=1", "=" * 5_000]
    )
    return with_set(draw, f"--set {text!r:.40}", text)


@KINDS.add
def an_odd_name(draw: Draw) -> Case:
    name = draw.odd_text().replace("=", "")
    return with_set(draw, f"--set {name!r:.40}=1", f"{name}=1")


@KINDS.add
def an_odd_name_of_a_table(draw: Draw) -> Case:
    name = draw.odd_text().replace("=", "").replace(".", "")
    return with_set(draw, f"--set training.{name!r:.40}=1", f"training.{name}=1")


@KINDS.add
def a_name_of_many_parts(draw: Draw) -> Case:
    n = draw.choice([51, 900, 20_000, 200_000])
    start = draw.choice(["", "model.", "training.optimizer.", "task."])
    return with_set(draw, f"--set {start} and {n:,} parts", f"{start}{'a.' * n}b=1")


@KINDS.add
def a_name_that_leads_below_a_value(draw: Draw) -> Case:
    table, name = any_field(draw)
    below = draw.choice(["x", "0", "kind.kind", "x.y.z", "__class__"])
    return with_set(draw, f"--set {table}.{name}.{below}=1", f"{table}.{name}.{below}=1")


@KINDS.add
def an_unknown_field(draw: Draw) -> Case:
    table, name = any_field(draw)
    odd = draw.choice([name[:-1] + "q", name.upper(), name * 2, "__init__", "model_config", "UNIT", f"{name}\u0301"])
    return with_set(draw, f"--set {table}.{odd}=1", f"{table}.{odd}=1")


@KINDS.add
def a_number_of_5000_digits(draw: Draw) -> Case:
    table, name = any_field(draw)
    digits = "9" * draw.choice([4_301, 5_000, 100_000])
    return with_set(
        draw,
        f"--set {table}.{name} of {len(digits):,} digits",
        f"{table}.{name}={draw.choice(['', '-', '0x', '0.'])}{digits}" + draw.choice(["", "e9999"]),
    )


@KINDS.add
def a_huge_number(draw: Draw) -> Case:
    name = draw.choice(
        [
            "model.d_model",
            "model.n_heads",
            "training.max_steps",
            "training.batch_tokens",
            "tokenizer.vocab_size",
            "decoding.beam_size",
            "training.seed",
        ]
    )
    value = draw.choice(["1e308", "-1e308", "1e999", "nan", "inf", "-1", "1.5", "-99999999999999999999999999"])
    return with_set(draw, f"--set {name}={value}", f"{name}={value}")


@KINDS.add
def a_share_that_is_none(draw: Draw) -> Case:
    name = draw.choice(
        [
            "model.dropout",
            "model.attention_dropout",
            "training.label_smoothing",
            "training.schedule.min_lr_ratio",
            "training.optimizer.beta1",
        ]
    )
    value = draw.choice(["-0.1", "1.0000001", "nan", "inf", "1e308", "-1e308", "2", "'a'", "[0.1]", "9" * 400])
    return with_set(draw, f"--set {name}={value:.30}", f"{name}={value}")


@KINDS.add
def a_value_that_is_too_deep(draw: Draw) -> Case:
    table, name = any_field(draw)
    depth = draw.choice([51, 400, 900, 10_000])
    left, right = draw.choice([("[", "]"), ("{a=", "}")])
    return with_set(draw, f"--set {table}.{name} nested {depth:,} deep", f"{table}.{name}={left * depth}1{right * depth}")


@KINDS.add
def a_value_with_a_dotted_key(draw: Draw) -> Case:
    table, name = any_field(draw)
    n = draw.choice([60, 900, 20_000])
    return with_set(draw, f"--set {table}.{name} with a key of {n:,} parts", f"{table}.{name}={{ {'a.' * n}b = 1 }}")


@KINDS.add
def a_value_of_another_type(draw: Draw) -> Case:
    table, name = any_field(draw)
    value = draw.choice(["{}", "[]", "{a=1}", "1979-05-27", "07:32:00", "''", "{kind=3}", "[[1]]", "{kind={}}", '"\\u0000"'])
    return with_set(draw, f"--set {table}.{name}={value}", f"{table}.{name}={value}")


@KINDS.add
def a_value_to_stumble_over(draw: Draw) -> Case:
    name = draw.choice(
        [
            "model.d_model",
            "training.max_steps",
            "model.norm",
            "training.optimizer",
            "task",
            "training.precision",
            "model.preset",
            "tokenizer.kind",
            "data.generate",
        ]
    )
    return with_set(draw, f"--set {name} to an odd text", f"{name}={draw.odd_text()}")


@KINDS.add
def a_value_that_smuggles_lines(draw: Draw) -> Case:
    value = draw.choice(["3\n[data]\nroot='/'", "3\ntask='x'", "3 # \x1b[2J", "3\r\n4", "3\nvalue = 4", '"""\n3'])
    return with_set(draw, f"--set training.max_steps={value!r}", f"training.max_steps={value}")


@KINDS.add
def a_value_of_10000_characters(draw: Draw) -> Case:
    table, name = any_field(draw)
    return with_set(
        draw, f"--set {table}.{name} to 10,000 characters", f"{table}.{name}={draw.choice(['x', ' y', '[', '1 ', 'é'])}" + draw.word(10_000)
    )


@KINDS.add
def no_unicode(draw: Draw) -> Case:
    name, value = draw.choice([("training.max_steps", "\udcff"), ("mod\udc80el", "1"), ("data.root", "\udcff"), ("task", "\ud800")])
    return with_set(draw, f"--set {name!a}={value!a}", f"{name}={value}", names=())


@KINDS.add
def a_whole_table_of_something_else(draw: Draw) -> Case:
    name = draw.choice(["model", "training", "data", "tokenizer", "decoding"])
    value = draw.choice(["3", "[]", "'x'", "true", "1e308", "[{}]", "1979-05-27", "nan"])
    return with_set(draw, f"--set {name}={value}", f"{name}={value}")


@KINDS.add
def an_unknown_component(draw: Draw) -> Case:
    name = draw.choice(
        [
            "model.norm",
            "model.position",
            "training.optimizer",
            "training.schedule",
            "model.attention",
            "training.average",
            "model.kind",
            "task",
        ]
    )
    value = draw.choice(["nothing", "{kind='nothing'}", "{kind=''}", "{}", "kind", "layer norm", "LAYERNORM", "\u0131d"])
    return with_set(draw, f"--set {name}={value}", f"{name}={value}")


@KINDS.add
def a_field_of_another_component(draw: Draw) -> Case:
    setting = draw.choice(
        [
            "training.optimizer.momentum=0.5",
            "training.schedule.decay_fraction=0.5",
            "training.average.decay=0.5",
            "model.norm.rank=3",
            "model.position.slope=1",
            "decoding.top_p=0.5",
        ]
    )
    return with_set(draw, f"--set {setting}", setting)


@KINDS.add
def hundreds_of_settings(draw: Draw) -> Case:
    n = draw.choice([300, 1_000])
    many = [f"training.max_steps={i}" for i in range(1, n)]
    return with_set(draw, f"{n} settings, the last of them bad", *many, f"model.{draw.word()}=1")


@KINDS.add
def a_setting_beside_its_opposite(draw: Draw) -> Case:
    setting = draw.choice(
        [
            "data.train={source='a',target='b'}",
            "data.languages=[{tag='x'}]",
            "data.valid={source='a',target='b'}",
            "model.d_head=-1",
            "model.n_heads=7",
            "model.tie_embeddings='all'",
        ]
    )
    more = ["tokenizer.joint=false"] if "tie_embeddings" in setting else []
    return with_set(draw, f"--set {setting}", setting, *more, names=())


@KINDS.add
def a_model_that_does_not_fit(draw: Draw) -> Case:
    field = draw.choice(
        [
            "d_ff=1000000000000",
            "d_model=4000000000",
            "n_encoder_layers=1000000000",
            "d_ff=10000000000000000000000",
            "max_seq_len=1000000000000",
            "n_heads=1000000000",
        ]
    )
    return Case(f"--set model.{field}", ["train", "copy", "--out", "out", "--set", f"model.{field}"])


@KINDS.add
def a_recipe_that_takes_no_such_task(draw: Draw) -> Case:
    task = draw.choice(["masked", "language", "image-classification", "classification", "instruction", "embedding"])
    field = draw.choice(list(FIELDS["decoding"]))
    return with_set(draw, f"--set task={task} of a translator's recipe", f"task={task}", f"decoding.{field}=1", names=())
