from __future__ import annotations

import pytest

from slime_stages.config import resolve
from slime_stages.config.flags import scalar, split_flags
from slime_stages.errors import UsageError


def test_a_list_takes_words_up_to_the_next_flag_and_may_be_repeated() -> None:
    flags = split_flags(["--rollout-stop", "a", "b", "--rollout-stop", "c", "--rollout-stop-token-ids", "7"])

    assert flags.words == {"rollout_stop": ["a", "b", "c"], "rollout_stop_token_ids": ["7"]}


def test_of_a_repeated_setting_the_last_counts() -> None:
    assert split_flags(["--lr", "1", "--lr", "2"]).words == {"lr": ["2"]}


def test_a_negative_number_is_a_value() -> None:
    assert split_flags(["--rollout-top-k", "-1", "--entropy-coef", "-1e-3"]).words == {
        "rollout_top_k": ["-1"],
        "entropy_coef": ["-1e-3"],
    }


def test_switches_go_on_off_or_take_a_word() -> None:
    flags = split_flags(["--bf16", "--no-async-save", "--disable-rewards-normalization", "--group-rm=false"])

    assert flags.words == {
        "bf16": ["true"],
        "async_save": ["false"],
        "disable_rewards_normalization": ["true"],
        "group_rm": ["false"],
    }


def test_pass_through_flags_take_no_one_or_many_words() -> None:
    flags = split_flags(["--sglang-enable-metrics", "--sglang-cuda-graph-bs", "1", "2", "--router-policy=random"])

    assert flags.passthrough == {
        "sglang": {"enable_metrics": [], "cuda_graph_bs": ["1", "2"]},
        "router": {"policy": ["random"]},
    }


def test_a_setting_that_looks_like_pass_through_is_a_setting() -> None:
    assert split_flags(["--sglang-server-concurrency", "8"]).words == {"sglang_server_concurrency": ["8"]}


def test_the_rest_keeps_its_order() -> None:
    flags = split_flags(["runs/a", "--force", "--lr", "1", "--n", "3", "--", "--lr", "2"])

    assert flags.rest == ["runs/a", "--force", "--n", "3", "--", "--lr", "2"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("8", 8),
        ("-1", -1),
        ("0.5", 0.5),
        ("1e-4", 1e-4),
        ("007", "007"),
        ("1.2.3", "1.2.3"),
        ("nan", "nan"),
    ],
)
def test_a_word_for_the_engine_is_read_as_the_file_would_hold_it(text: str, value: object) -> None:
    assert (scalar(text), type(scalar(text))) == (value, type(value))


def test_a_flag_without_its_value_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        resolve(None, ["--hf-checkpoint", "m", "--prompt-data", "p", "--rollout-batch-size", "--bf16"])

    assert "--rollout-batch-size needs a value" in caught.value.message


def test_a_table_must_be_json() -> None:
    with pytest.raises(UsageError) as caught:
        resolve(None, ["--apply-chat-template-kwargs", "{a}"])

    assert 'apply_chat_template_kwargs = "{a}" (--apply-chat-template-kwargs) should be a JSON object' in str(
        caught.value
    )


def test_the_value_of_an_unknown_flag_is_not_a_second_problem() -> None:
    with pytest.raises(UsageError) as caught:
        resolve(None, ["--hf-checkpoint", "m", "--prompt-data", "p", "--rollout-batch-size", "4", "--lrr", "3"])

    assert (caught.value.message, caught.value.hint) == ("there is no flag --lrr", "did you mean `--lr`?")
