"""The demo's training: what it shows and asks for, that a step learns, that a run goes on where it stood, and
that what it exports answers in transformers and in kaminari alike.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

from examples.demo_model import export, fonts, phrases, plot, style, train, trainer, words
from examples.demo_model.askers import conversation
from examples.demo_model.batches import Batch, make_batch
from examples.demo_model.camera import tilt
from examples.demo_model.canvas import Canvas
from examples.demo_model.cells import ALPHABET, CELL, CLASSES, answer_cells, in_cells, patch_characters
from examples.demo_model.lessons import KINDS, Ration, draw_lessons
from examples.demo_model.losses import losses
from examples.demo_model.network import Network
from examples.demo_model.receipts import draw_receipt
from examples.demo_model.sample import Drawing, Quote, Run, Turn
from examples.demo_model.schedule import Schedule
from examples.demo_model.tokens import Scribe
from examples.demo_model.trainer import Plan, Trainer, make_optimizer
from examples.demo_model.training_log import LOG, read_log
from examples.demo_model.training_state import FILE, StateError, load_state, load_weights, save_state
from kaminari import Conversation, Message, Role, SamplingParams, collect
from kaminari.config import load_settings
from kaminari.engine.engine import Engine
from tests.reference import reference, reference_greedy

DEMO = Path(__file__).parents[1] / "kaminari" / "demo"
CPU = torch.device("cpu")
SMALL = tuple(Ration(kind, 2) for kind in KINDS)
ASKED = [ration for ration in SMALL if ration.kind != "tile"]
STEADY = Schedule(peak=1e-3, first=0, warm_up=1, last=100, cool_down=0)


@pytest.fixture(scope="module")
def scribe() -> Scribe:
    return Scribe(DEMO)


@pytest.fixture(scope="module")
def demo_engine() -> Iterator[Engine]:
    with Engine.load(load_settings({"model.dtype": "float32", "engine.threads": 1})) as engine:
        yield engine


def shipped_network(scribe: Scribe) -> Network:
    network = Network(scribe.config)
    load_weights(DEMO / "model.safetensors", network)
    return network


def tensors(batch: Batch) -> list[torch.Tensor]:
    parts = [part for side in batch if side is not None for part in side]
    flat = [inner for part in parts for inner in (part if isinstance(part, tuple) else (part,))]
    return [part for part in flat if part is not None]


@pytest.mark.parametrize("ration", SMALL, ids=lambda ration: ration.kind)
def test_a_seed_makes_the_same_batch_again_and_another_seed_another(scribe: Scribe, ration: Ration) -> None:
    first, again, other = (tensors(make_batch(ration, scribe, seed, CPU)) for seed in ("one", "one", "two"))
    assert all(torch.equal(one, same) for one, same in zip(first, again, strict=True))
    assert any(not torch.equal(one, two) for one, two in zip(first, other, strict=True))


def test_a_plan_shows_every_kind_and_nothing_that_is_held_out() -> None:
    plan = Plan(seed=0, tiles=12, schedule=STEADY)
    assert [ration.kind for ration in plan.rations(11)] == ["tile"]
    shown = {ration.kind for step in range(12, 18) for ration in plan.rations(step)}
    harder = {ration.kind for step in range(12, 18) for ration in replace(plan, harder=True).rations(step)}
    assert harder == set(KINDS)
    assert harder - shown == {
        "harder line", "harder receipt", "long receipt", "two receipts", "table", "chart"
    }  # fmt: skip
    assert shown < harder
    trained = [trained for _, trained in style.TRAINED]
    others = [trained for _, trained in style.TRAINED_HARDER]
    assert not {font for drawn in trained + others for font in drawn.fonts} & set(fonts.HELD_OUT)
    assert not {size for drawn in trained for size in drawn.line_sizes} & set(style.OTHER_SIZES.line_sizes)


@pytest.mark.parametrize("kind", [ration.kind for ration in ASKED])
def test_only_answers_and_their_ends_are_learnt(scribe: Scribe, kind: str) -> None:
    for sample in draw_lessons(kind, 4, f"masked {kind}"):
        tokens = scribe.write(sample, system="Answer briefly.")
        learnt = [token for token, taught in zip(tokens.ids, tokens.answers, strict=True) if taught]
        assert scribe.tokenizer.decode(learnt) == "".join(f"{turn.answer}<|im_end|>" for turn in sample.turns)


@pytest.mark.parametrize("ration", ASKED, ids=lambda ration: ration.kind)
def test_tokens_and_positions_are_those_of_a_request(
    scribe: Scribe, demo_engine: Engine, ration: Ration
) -> None:
    seed = f"request {ration.kind}"
    samples = draw_lessons(ration.kind, ration.size, seed)
    texts = make_batch(ration, scribe, seed, CPU).texts
    assert texts is not None
    for row, sample in enumerate(samples):
        asked = conversation(sample)
        systems = [(), *((Message.text(Role.SYSTEM, system),) for system in phrases.SYSTEM)]
        prompts = [demo_engine.prepare(Conversation((*system, *asked.messages))) for system in systems]
        for prompt, system in zip(prompts, ("", *phrases.SYSTEM), strict=True):
            tokens = scribe.write(sample, system)
            length = len(prompt.token_ids)
            assert tuple(tokens.ids[:length]) == prompt.token_ids
            assert sum(tokens.pictures) == prompt.image_tokens
        shown = texts.tokens[row].tolist()
        (sent,) = (prompt for prompt in prompts if tuple(shown[: len(prompt.token_ids)]) == prompt.token_ids)
        assert np.array_equal(texts.positions[:, row, : len(sent.token_ids)].numpy(), sent.positions)


def test_quotes_are_what_the_picture_says() -> None:
    turns = 0
    for sample in (*draw_lessons("line", 10, "quotes"), *draw_lessons("receipt", 30, "quotes")):
        runs = sample.drawings[0].runs
        for turn in sample.turns:
            turns += 1
            quoted = ["" if character.isspace() else character for character in turn.answer]
            for quote in turn.quotes:
                stretch = slice(quote.start, quote.start + quote.length)
                assert turn.answer[stretch] == runs[quote.run].text[quote.offset :][: quote.length]
                quoted[stretch] = [""] * quote.length
            expected = "" if sample.task != "receipt" or turn.answer[0] != "{" else '{"total":"","date":""}'
            assert "".join(quoted) in (expected, '{"total":"","date":null}'), turn
    assert turns > 60


@pytest.mark.parametrize("kind", ["long receipt", "harder receipt", "two receipts", "table", "chart"])
def test_harder_answers_quote_the_picture_too(kind: str) -> None:
    quoted = 0
    for sample in draw_lessons(kind, 12, "harder quotes"):
        runs = sample.drawings[0].runs
        for turn in sample.turns:
            for quote in turn.quotes:
                stretch = turn.answer[quote.start : quote.start + quote.length]
                assert stretch == runs[quote.run].text[quote.offset :][: quote.length], turn
                quoted += 1
    assert quoted > 4


def test_characters_of_a_tilted_line_are_where_the_ink_is() -> None:
    """The middle of each letter's ink, drawn alone and tilted alike, lies beside where its line says."""
    font = fonts.Font(fonts.PILLOW, 24)
    for degrees in (-3.0, 3.0):
        canvas = Canvas(Random(1), 256, 96)
        canvas.write(16, 40, "NHNHNHNHNHN", font)
        drawing = canvas.finish()
        tilted = tilt(drawing, degrees)
        (run,) = tilted.runs
        assert abs(run.slope + math.tan(math.radians(degrees))) < 1e-6
        gray = np.asarray(tilted.image.convert("L"), dtype=np.int16)
        ink = np.abs(gray - int(np.median(gray))) > 60
        left, top, right, bottom = run.box
        for begin, end in itertools.pairwise(run.edges):
            columns = ink[:, math.ceil(begin) : math.floor(end)]
            rows = np.flatnonzero(columns.any(axis=1))
            middle = (top + bottom) / 2 + run.slope * ((begin + end) / 2 - (left + right) / 2)
            assert abs((rows[0] + rows[-1] + 1) / 2 - middle) < 1.6, (degrees, begin)


def test_a_tilt_keeps_all_text_inside() -> None:
    for number in range(20):
        _, drawing = draw_receipt(Random(number), style.TRAINING, dated=False)
        for run in tilt(drawing, 3.0).runs:
            left, top, right, bottom = run.box
            assert left >= 0
            assert top >= 0
            assert right <= drawing.image.width
            assert bottom <= drawing.image.height


def test_an_answer_is_guided_to_the_cells_of_its_characters(scribe: Scribe) -> None:
    image = Image.new("RGB", (96, 64))
    drawing = Drawing(
        image, (Run("AB", (0, 4, 60, 20), (0, 30, 60)), Run("7.5", (40, 40, 90, 60), (40, 64, 65, 96)))
    )
    turn = Turn("How much is the B?", "B 7.5", (Quote(0, 1, 0, 1), Quote(2, 3, 1)))
    assert answer_cells(turn, drawing) == [1, None, 4, 5, 5]
    (sample,) = draw_lessons("line", 1, "guided")
    tokens = scribe.write(sample)
    run = sample.drawings[0].runs[0]
    cells = [
        int((run.box[1] + run.box[3]) / 2) // CELL * (256 // CELL) + int((left + right) / 2) // CELL
        for left, right in zip(run.edges, run.edges[1:], strict=False)
    ]
    read = {index + 1: cell for index, cell in tokens.guides}
    learnt = [index for index, taught in enumerate(tokens.answers) if taught]
    assert set(read) <= set(learnt)
    position = 0
    for index in learnt[:-1]:
        text = scribe.tokenizer.decode([tokens.ids[index]])
        within = [cells[position + at] for at, character in enumerate(text) if not character.isspace()]
        assert (read.get(index) == within[0]) if within else index not in read
        position += len(text)


def test_patches_name_the_characters_in_their_middle() -> None:
    drawing = Drawing(
        Image.new("RGB", (64, 32)),
        (Run("ab d", (0, 0, 30, 14), (0, 4, 8, 20, 30)), Run("xyzw", (-9, 18, 90, 30), (-9, -1, 50, 63, 90))),
    )
    named = patch_characters(drawing)
    assert named.shape == (2, 4, 3)
    assert named.max() < CLASSES
    letters = {(row, column): tuple(named[row, column]) for row, column in np.argwhere(named[..., 0])}
    a, b, d, y, z = (patch_characters(_one(character))[0, 0, 0] for character in "abdyz")
    assert letters == {(0, 0): (a, b, 0), (0, 1): (d, 0, 0), (1, 1): (y, 0, 0), (1, 3): (z, 0, 0)}
    assert in_cells(np.arange(8).reshape(2, 4)).tolist() == [0, 1, 4, 5, 2, 3, 6, 7]


def test_every_character_that_is_drawn_has_a_name() -> None:
    spelled = words.LETTERS + words.ACCENTED
    said = [*phrases.ITEMS, *phrases.STORES, spelled, spelled.upper(), *words.everyday(), *words.dictionary()]
    said += [
        character for sample in draw_lessons("line", 200, "named") for character in sample.turns[0].answer
    ]
    assert set("".join(said)) - {" "} <= set(ALPHABET)


def _one(character: str) -> Drawing:
    return Drawing(Image.new("RGB", (32, 32)), (Run(character, (0, 0, 9, 9), (0, 9)),))


@pytest.mark.parametrize("ration", SMALL, ids=lambda ration: ration.kind)
def test_a_step_lowers_the_loss_on_its_batch(
    scribe: Scribe, ration: Ration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "MIXTURE", (ration,))
    network = Network(scribe.config, seed=1)
    learner = Trainer(network, make_optimizer(network), scribe, Plan(0, 0, STEADY))
    batch = make_batch(ration, scribe, f"training 0 7 {ration.kind}", CPU)
    before = losses(network, batch)
    shown = learner.step(7)[ration.kind]
    after = losses(network, batch)
    assert after.total < before.total
    for name in {"loss", "guide", "characters"} & shown.keys():
        assert shown[name] == pytest.approx(float(before.figures[name]), rel=0.02)
    assert "guide" in shown or ration.kind not in ("line", "receipt")


def test_the_network_computes_what_the_reference_does(scribe: Scribe, tmp_path: Path) -> None:
    network = Network(scribe.config, seed=2)
    folder = exported(network, tmp_path)
    load_weights(folder / "model.safetensors", network)
    golden = reference(folder)
    for ration in ASKED:
        seed = f"reference {ration.kind}"
        batch = make_batch(ration, scribe, seed, CPU)
        texts, pictures = batch.texts, batch.pictures
        assert texts is not None
        sight = None if pictures is None else network.model.visual(pictures.pixels).of_lessons(2)
        decoder = network.model.language_model
        states, _ = decoder(texts.tokens, texts.positions, texts.places, sight)
        ours = decoder.logits(states)
        for row, sample in enumerate(draw_lessons(ration.kind, ration.size, seed)):
            ids = texts.tokens[row]
            text = golden.processor.tokenizer.decode(ids)
            for drawing in sample.drawings:
                count = drawing.image.width // CELL * (drawing.image.height // CELL)
                text = text.replace("<|image_pad|>" * count, "<|placeholder|>", 1)
            text = text.replace("<|placeholder|>", "<|image_pad|>")
            inputs = golden.inputs(text, [drawing.image for drawing in sample.drawings])
            assert torch.equal(inputs["input_ids"][0], ids)
            learnt = texts.answers[texts.answers // len(ids) == row] % len(ids)
            expected = golden.model(**inputs).logits[0]
            torch.testing.assert_close(ours[row, learnt], expected[learnt], rtol=1e-4, atol=1e-4)


def exported(network: Network, folder: Path) -> Path:
    save_state_of(network, folder)
    export.export(folder, folder / "checkpoint", DEMO)
    return folder / "checkpoint"


def save_state_of(network: Network, folder: Path) -> None:
    save_state(folder, network, make_optimizer(network), step=0, first=0)


def test_shipped_weights_come_back_from_an_export_unchanged(scribe: Scribe, tmp_path: Path) -> None:
    folder = exported(shipped_network(scribe), tmp_path)
    shipped, again = load_file(DEMO / "model.safetensors"), load_file(folder / "model.safetensors")
    assert shipped.keys() == again.keys()
    assert all(torch.equal(shipped[name], again[name]) for name in shipped)
    assert (folder / "model.safetensors").stat().st_size < 16e6
    assert {file.name for file in folder.iterdir()} == {
        file.name for file in DEMO.iterdir() if file.suffix != ".md"
    }


def test_a_trained_export_answers_alike_in_transformers_and_kaminari(scribe: Scribe, tmp_path: Path) -> None:
    network = shipped_network(scribe)
    learner = Trainer(network, make_optimizer(network), scribe, Plan(0, 0, STEADY))
    learner.step(0)
    folder = exported(network, tmp_path)
    golden = reference(folder)
    settings = {"model.source": str(folder), "model.dtype": "float32", "engine.threads": 1}
    with Engine.load(load_settings(settings)) as engine:
        for kind in ("line", "receipt", "two pictures"):
            (sample,) = draw_lessons(kind, 1, "alike")
            asked = replace(sample, turns=sample.turns[:1])
            prompt = engine.prepare(conversation(asked))
            answer = collect(engine.submit(prompt, SamplingParams(temperature=0, max_tokens=40)))
            shown = [{"type": "image"} for _ in asked.drawings]
            content = [*shown, {"type": "text", "text": asked.question}]
            expected = reference_greedy(
                golden,
                golden.render([{"role": "user", "content": content}]),
                [drawing.image for drawing in asked.drawings],
                max_tokens=40,
            )
            assert prompt.token_ids == expected.prompt_ids
            assert answer.text
            assert answer.text == scribe.tokenizer.decode(expected.token_ids, skip_special_tokens=True)
            assert answer.usage.completion_tokens == len(expected.token_ids)


def run_state(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / FILE)


def few_lessons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "MIXTURE", (Ration("line", 2), Ration("shape", 1, every=2)))


def test_a_resumed_run_ends_as_an_uninterrupted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few_lessons(monkeypatch)
    options = [
        "--model",
        str(DEMO),
        "--steps",
        "4",
        "--warm-up",
        "2",
        "--cool-down",
        "2",
        "--save-every",
        "2",
    ]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert train.main(["--out", str(whole), *options]) == 0
    step = Trainer.step

    def interrupted(self: Trainer, number: int) -> dict[str, dict[str, float]]:
        if number == 3:
            raise KeyboardInterrupt
        return step(self, number)

    monkeypatch.setattr(Trainer, "step", interrupted)
    assert train.main(["--out", str(cut), *options]) == 130
    monkeypatch.setattr(Trainer, "step", step)
    assert train.main(["--out", str(cut), *options]) == 0
    one, other = run_state(whole), run_state(cut)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_branch_goes_on_where_its_run_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few_lessons(monkeypatch)
    options = ["--model", str(DEMO), "--seed", "5"]
    run, branch = tmp_path / "run", tmp_path / "branch"
    assert train.main(["--out", str(run), "--steps", "2", *options]) == 0
    before = run_state(run)
    assert train.main(["--out", str(branch), "--branch", str(run), "--steps", "1", *options]) == 0
    assert run_state(run).keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in run_state(run).items())
    with safe_open(branch / FILE, "pt") as opened:
        assert opened.metadata() == {"step": "3", "first": "0"}
    name = "weights/model.visual.pos_embed.weight"
    assert not torch.equal(run_state(branch)[name], before[name])


def test_a_state_brings_the_optimizer_back(scribe: Scribe, tmp_path: Path) -> None:
    network = Network(scribe.config, seed=3)
    optimizer = make_optimizer(network)
    learner = Trainer(network, optimizer, scribe, Plan(0, 99, STEADY))
    learner.step(0)
    save_state(tmp_path, network, optimizer, step=1, first=0)
    other = Network(scribe.config, seed=4)
    again = make_optimizer(other)
    assert load_state(tmp_path, other, again) == (1, 0)
    assert len(again.state) == len(optimizer.state) > 50
    for one, same in zip(network.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, same)
        for moment, value in optimizer.state.get(one, {}).items():
            assert torch.equal(again.state[same][moment], value)


def test_the_rate_warms_up_stays_and_cools_down() -> None:
    schedule = Schedule(peak=1.0, first=10, warm_up=4, last=100, cool_down=20)
    assert [schedule.rate(step) for step in (10, 11, 13, 50, 79)] == [0.25, 0.5, 1, 1, 1]
    cooling = [schedule.rate(step) for step in range(79, 100)]
    assert cooling == sorted(cooling, reverse=True)
    assert cooling[10] == pytest.approx(0.51)
    assert cooling[-1] == pytest.approx(0.02)
    assert {Schedule(1.0, 0, 1, 9, 0).rate(step) for step in range(9)} == {1.0}


def test_the_log_holds_means_and_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "MIXTURE", (Ration("plain text", 1),))
    monkeypatch.setattr("examples.demo_model.training_log.EVERY", 2)
    run = tmp_path / "run"
    assert train.main(["--out", str(run), "--model", str(DEMO), "--steps", "5"]) == 0
    lines = read_log(run / LOG)
    assert [line["step"] for line in lines] == [1, 3]
    assert lines[0]["rate"] == pytest.approx(1.2e-5)
    assert set(lines[1]["plain text"]) == {"loss", "right"}
    again = json.dumps({"step": 3, "plain text": {"loss": 9.0}})
    (run / LOG).write_text((run / LOG).read_text() + again + "\n")
    assert read_log(run / LOG)[1]["plain text"] == {"loss": 9.0}
    picture = tmp_path / "curves.png"
    assert plot.main([str(run), "--out", str(picture)]) == 0
    with Image.open(picture) as image:
        assert image.size == (plot.WIDTH, 2 * plot.HEIGHT)
        assert len(image.getcolors(1 << 16) or []) > 3


@pytest.mark.parametrize(
    "options",
    [
        ["--steps", "0"],
        ["--save-every", "0"],
        ["--steps", "10", "--cool-down", "11"],
        ["--tiles", "-1"],
        ["--rate", "0"],
        ["--start", "a", "--branch", "b"],
    ],
    ids=" ".join,
)
def test_wrong_arguments_are_refused(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        train.main(["--out", str(tmp_path / "run"), *options])
    assert refused.value.code == 2
    assert options[-2] in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_gone_on_from_is_said_in_a_line(
    scribe: Scribe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    garbage = tmp_path / "garbage.safetensors"
    garbage.write_bytes(b"no tensors")
    start = ["--out", str(tmp_path / "run"), "--model", str(DEMO), "--steps", "1"]
    for source in (["--start", str(garbage)], ["--branch", str(tmp_path)], ["--model", str(tmp_path)]):
        assert train.main([*start, *source]) == 1
        said = capsys.readouterr().err
        assert str(tmp_path) in said
        assert said.count("\n") == 1
    assert export.main([str(tmp_path), str(tmp_path / "checkpoint")]) == 1
    assert not (tmp_path / "checkpoint").exists()
    assert plot.main([str(tmp_path)]) == 1


def test_other_weights_are_refused(scribe: Scribe) -> None:
    network = Network(scribe.config)
    weights = dict(network.checkpoint_weights())
    name, tensor = weights.popitem()
    with pytest.raises(ValueError, match="1 missing"):
        network.start_from(weights)
    with pytest.raises(ValueError, match="1 strange"):
        network.start_from({**weights, name: tensor[..., :1]})
    with pytest.raises(ValueError, match=r"such as lm_head\.weight"):
        network.start_from({**weights, name: tensor, "lm_head.weight": tensor})
    network.start_from({**weights, name: tensor})


def test_an_export_does_not_write_over_a_folder(scribe: Scribe, tmp_path: Path) -> None:
    save_state_of(Network(scribe.config), tmp_path)
    (tmp_path / "there").mkdir()
    with pytest.raises(FileExistsError):
        export.export(tmp_path, tmp_path / "there", DEMO)
    with pytest.raises(StateError, match="cannot read"):
        export.export(tmp_path / "there", tmp_path / "new", DEMO)
