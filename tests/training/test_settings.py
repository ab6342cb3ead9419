"""The settings of a run: defaults that depend on what is trained, and the JSON that a resume file holds."""

import dataclasses
import json

import pytest

from numpy_minimind.training.settings import DEFAULTS, TrainSettings


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"corpus": "toy", "steps": 1200, "batch_size": 8, "seq_len": 128, "lr": 2e-3, "preset": "toy"}),
        ({"corpus": "a.txt"}, {"steps": 1500, "batch_size": 16, "seq_len": 128}),
        ({"corpus": "pretrain:a.jsonl"}, {"steps": 1500, "seq_len": 340}),
        ({"corpus": "sft:a.jsonl", "seq_len": 9}, {"seq_len": 9}),
        ({"init_from": "m"}, {"lr": 1e-5, "preset": None, "tokenizer": None, "steps": 1200}),
        ({"init_from": "m", "lr": 0.1, "tokenizer": "t"}, {"lr": 0.1, "preset": None, "tokenizer": "t"}),
        ({"steps": 50}, {"steps": 50, "warmup": 5}),
        ({"steps": 5000}, {"warmup": 20}),
        ({"steps": 50, "warmup": 0}, {"warmup": 0}),
        ({"set": ["a=1", "b=2"]}, {"set": ("a=1", "b=2")}),
    ],
)
def test_what_is_not_given_depends_on_the_corpus_and_on_what_the_model_begins_with(given, expected):
    settings = TrainSettings.of_new_run(given)
    assert {name: getattr(settings, name) for name in expected} == expected


def test_a_new_model_and_one_that_there_is_exclude_each_other():
    with pytest.raises(ValueError, match="--preset makes a new model and --init-from continues one"):
        TrainSettings.of_new_run({"preset": "tiny", "init_from": "m"})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("batch_size", "--batch-size must be at least 1, got 0"),
        ("save_every", "--save-every must be at least 1, got 0"),
        ("threads", "--threads must be at least 1, got 0"),
    ],
)
def test_a_number_that_is_too_small_is_refused_by_the_name_of_its_flag(name, message):
    with pytest.raises(ValueError, match=message):
        TrainSettings(**{name: 0})
    with pytest.raises(ValueError, match="--seed must not be negative, got -1"):
        TrainSettings(seed=-1)


def test_json_gives_back_the_settings_and_an_earlier_program_s_have_defaults():
    settings = TrainSettings(corpus="a.txt", set=("a=1",), threads=2, lr=0.1 + 0.2)
    stored = json.loads(json.dumps(settings.to_json()))
    assert TrainSettings.from_json(stored) == settings and stored["set"] == ["a=1"]
    assert list(stored) == list(DEFAULTS) == [field.name for field in dataclasses.fields(TrainSettings)]
    first = {name: value for name, value in stored.items() if name not in ("init_from", "checkpoint_activations")}
    assert TrainSettings.from_json(first) == settings
    with pytest.raises(ValueError, match="settings that this version does not know: workers"):
        TrainSettings.from_json({**stored, "workers": 2})


def test_nobody_changes_the_settings_of_a_run():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainSettings().threads = 2


def test_steps_that_are_logged_and_looked_at():
    settings = TrainSettings(steps=11, log_every=4, eval_every=5)
    assert [step for step in range(1, 12) if settings.is_evaluated(step)] == [5, 10, 11]
    assert [step for step in range(1, 12) if settings.is_logged(step)] == [1, 4, 5, 8, 10, 11]


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (TrainSettings(preset="tiny"), "tiny model"),
        (TrainSettings(preset=None, init_from="/a/run"), "model of run"),
        (TrainSettings(preset=None, init_from="/a/run/model"), "model of run"),
    ],
)
def test_what_a_model_is_called(settings, name):
    assert settings.model_name == name
