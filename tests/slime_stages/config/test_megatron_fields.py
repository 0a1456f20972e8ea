from __future__ import annotations

import pytest

from slime_stages.config.megatron_fields import check_megatron_fields
from slime_stages.errors import UsageError
from tests.slime_stages.config.settings import resolved


def test_a_field_of_the_installed_megatron_passes_through() -> None:
    config = resolved(megatron={"moe_router_dtype": "fp64", "overlap_grad_reduce": True}).config

    check_megatron_fields(config.train.megatron)

    assert config.train.megatron == {"moe_router_dtype": "fp64", "overlap_grad_reduce": True}
    assert config.as_args().moe_router_dtype == "fp64"


def test_an_unknown_field_is_refused_with_the_one_that_is_meant() -> None:
    with pytest.raises(UsageError, match=r"Megatron-Core \S+ has no field moe_router_dtyp ") as error:
        check_megatron_fields({"moe_router_dtyp": "fp32"})

    assert error.value.hint == "did you mean `moe_router_dtype`?"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("context_parallel_size", "--context-parallel-size"),
        ("mtp_num_layers", "--mtp-num-layers"),
        ("num_layers", "remove --megatron-num-layers"),
        ("moe_aux_loss_coeff", "remove --megatron-moe-aux-loss-coeff"),
    ],
)
def test_a_field_that_something_else_decides_is_refused_with_what_does(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        check_megatron_fields({name: 1})

    assert error.value.hint == hint
