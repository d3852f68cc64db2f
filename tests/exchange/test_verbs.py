"""Each published folder: import, all commands that fit, training from it, and an export that the library loads."""

import json
from pathlib import Path

import pytest
import transformers
from PIL import Image

import transom
from tests.exchange.published_folders import FOLDERS, TRANSLATION, PublishedFolder, save_marian
from tests.tiers import every
from transom.cli.main import main
from transom.decoding.predictors.generator import Generator
from transom.exchange.export_run import export_run
from transom.exchange.family import all_families
from transom.exchange.import_folder import import_folder

TEXTS = ("the cat sat on the mats", "isn't it raining? 12345", "</s> [SEP] Über naïve <|endoftext|>")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder with an image and a text, and go there."""
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (20, 24), (200, 30, 90)).save("image.png")
    Path("text.txt").write_text("the cat sat on the mats\nit is raining\n" * 30, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("folder", every(14, FOLDERS), ids=lambda folder: folder.case)
def test_a_folder_is_imported_used_and_exported(folder: PublishedFolder, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.save(here / "theirs")
    assert main(["import", "theirs", "run"]) == 0, capsys.readouterr().err
    for verb in folder.verbs:
        words = [{"RUN": "run", "IMAGE": "image.png"}.get(word, word) for word in verb]
        assert main(words) in (0, 1) if verb[0] == "doctor" else main(words) == 0, (verb, capsys.readouterr().err)
    assert main(["export", "run", "exported", "--to", "huggingface"]) == 0, capsys.readouterr().err
    if folder.tokenizer is not None:
        theirs, back = (transformers.AutoTokenizer.from_pretrained(path) for path in ("theirs", "exported"))
        for text in TEXTS:
            assert theirs(text)["input_ids"] == back(text)["input_ids"], text
    architecture = next(
        family.auto_class for family in all_families() if family.architecture in (here / "exported/config.json").read_text()
    )
    assert getattr(transformers, architecture).from_pretrained("exported") is not None


@pytest.mark.long
def test_a_marian_folder_is_imported_used_and_exported(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its two SentencePiece models number the same pieces; the export needs no SentencePiece, encodes the source and decodes the target."""
    expected = save_marian(here / "theirs")
    assert main(["import", "theirs", "run"]) == 0, capsys.readouterr().err
    for verb in TRANSLATION:
        words = [{"RUN": "run"}.get(word, word) for word in verb]
        assert main(words) in (0, 1) if verb[0] == "doctor" else main(words) == 0, (verb, capsys.readouterr().err)
    assert main(["export", "run", "exported", "--to", "huggingface"]) == 0, capsys.readouterr().err
    back, n = transformers.AutoTokenizer.from_pretrained("exported"), len(expected["vocab"])
    known = [(text, ids) for text, ids, _ in expected["source"] if expected["vocab"]["<unk>"] not in ids and not set("<>") & set(text)]
    assert [back(text)["input_ids"] for text, _ in known] == [ids for _, ids in known] and len(known) > 20
    assert all(back.decode(ids, skip_special_tokens=True).strip() == text for _, ids, text in expected["target"])
    source = back("the house", return_tensors="pt")
    answer = transformers.AutoModelForSeq2SeqLM.from_pretrained("exported").generate(
        **source, num_beams=1, do_sample=False, max_new_tokens=8
    )
    found = transom.load("run").translate(["the house"], beam_size=1, max_length=9)[0]  # with the end token
    assert len(back) == n and back.decode(answer[0], skip_special_tokens=True).strip() == found.strip()


def test_each_of_several_end_tokens_ends_a_text(here: Path) -> None:
    """Chat models list the end of a turn beside the end of a text in their settings of generation."""
    (folder,) = (each for each in FOLDERS if each.case == "llama")
    theirs = folder.save(here / "theirs")
    tokenizer, model = transformers.AutoTokenizer.from_pretrained(theirs), transformers.AutoModelForCausalLM.from_pretrained(theirs)
    for text in TEXTS:
        prompt = tokenizer(text, return_tensors="pt")
        n = prompt["input_ids"].shape[1]
        free = model.generate(**prompt, do_sample=False, max_new_tokens=20)[0, n:].tolist()
        if len(set(free)) > 1:
            break
    other = next(token for token in free if token != free[0])
    ends = [other, tokenizer.eos_token_id]
    (theirs / "generation_config.json").write_text(json.dumps({"eos_token_id": ends, "max_new_tokens": 20}))
    expected = transformers.AutoModelForCausalLM.from_pretrained(theirs).generate(**prompt)[0, n:].tolist()
    assert expected == free[: free.index(other) + 1]
    import_folder(theirs, here / "run")
    generator = transom.load("run", kind=Generator)
    (found,) = generator.continuations([text])[0]
    assert found.text == tokenizer.decode(expected[:-1]) and found.finish_reason == "end"
    assert generator.tokenizer.special_tokens.other_end_token_ids == (other,)
    export_run(here / "run", here / "exported")
    again = transformers.AutoModelForCausalLM.from_pretrained("exported")
    assert again.generation_config.eos_token_id == ends and again.generate(**prompt)[0, n:].tolist() == expected


@pytest.mark.long
@pytest.mark.parametrize("folder", [each for each in FOLDERS if each.recipe], ids=lambda folder: folder.case)
@pytest.mark.parametrize("adapter", [False, True], ids=["whole", "lora"])
def test_training_continues_from_an_import(folder: PublishedFolder, adapter: bool, here: Path) -> None:
    """Train a few steps, with all weights or an adapter, and export the result, which is still of the same type."""
    report = import_folder(folder.save(here / "theirs"), here / "run")
    words = [{"TEXT": "text.txt"}.get(word, word) for word in folder.recipe]
    options = ["--set", "training.max_steps=4", "--set", "training.validate_every=4", "--set", "training.batch_tokens=256"]
    options += ["--set", "training.adapter=lora"] if adapter else []
    assert main(["train", words[0], *words[1:], "--init-from", "run", "--out", "tuned", *options]) == 0
    exported = export_run(here / "tuned", here / "exported")
    assert exported.architecture == report.architecture and exported.agreement.relative < 1e-4
