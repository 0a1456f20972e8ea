"""[algorithm]: from rewards to a loss."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from slime_stages.config.types import LocalPath, Section

BEFORE = frozenset(
    {
        "advantage_estimator",
        "eps_clip",
        "eps_clip_high",
        "eps_clip_c",
        "entropy_coef",
        "calculate_per_token_loss",
        "disable_grpo_std_normalization",
        "disable_rewards_normalization",
        "use_rollout_logprobs",
        "use_tis",
        "tis_clip",
        "tis_clip_low",
        "null_reward",
    }
)
"""Settings that are in every digest; the others came later."""


class Algorithm(Section):
    title: ClassVar[str] = "from rewards to a loss"

    advantage_estimator: Literal[
        "grpo", "gspo", "cispo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "ppo"
    ] = "grpo"
    """How good a token was, and how the ratio counts: by the samples of a prompt, the ratio per token (grpo), per
    sequence (gspo) or as a clipped weight (cispo); by what follows a token (reinforce_plus_plus), or by both; by a
    critic (ppo)."""

    loss_type: Literal["policy_loss", "sft_loss", "custom_loss"] = "policy_loss"
    """Policy gradient, likelihood of the responses, or `custom_loss_function_path`."""

    eps_clip: NonNegativeFloat = 0.2
    """The policy ratio counts down to 1 - eps_clip."""

    eps_clip_high: NonNegativeFloat | None = None
    """The policy ratio counts up to 1 + eps_clip_high; `eps_clip` without it."""

    eps_clip_c: float | None = None
    """Dual clip: bounds the loss of a negative advantage at this many times it; above 1."""

    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""

    calculate_per_token_loss: bool = False
    """Every token of a step weighs the same, instead of every rollout."""

    disable_grpo_std_normalization: bool = False
    """Do not divide rewards by their group's standard deviation; always so where a prompt has one sample."""

    disable_rewards_normalization: bool = False
    """Take rewards as they are, without subtracting their group's mean."""

    disable_compute_advantages_and_returns: bool = False
    """Compute neither advantages nor what they need, for a custom loss without; sft_loss never does."""

    normalize_advantages: bool = False
    """Shift and scale advantages to mean 0 and variance 1 over all trained tokens of the iteration."""

    gamma: NonNegativeFloat = 1.0
    """Discount of what a later token earns, for ppo and reinforce_plus_plus."""

    lambd: NonNegativeFloat = 1.0
    """Decay of generalised advantage estimation, for ppo."""

    value_clip: PositiveFloat = 0.2
    """How far a critic's value may move before its loss stops pulling, for ppo."""

    num_critic_only_steps: NonNegativeInt = 0
    """Iterations at the beginning that train the critic alone, for ppo."""

    ref_load: LocalPath | None = None
    """Reference model: Hugging Face folder, or folder of torch_dist checkpoints; `hf_checkpoint` without it."""

    ref_ckpt_step: PositiveInt | None = None
    """Which of the checkpoints in `ref_load`; the newest without it."""

    ref_update_interval: PositiveInt | None = None
    """The policy becomes the reference after every so many iterations."""

    kl_coef: float = 0.0
    """Weight of the KL to the reference as a penalty on rewards; grpo, gspo and cispo only report it."""

    use_kl_loss: bool = False
    """Add the KL to the reference to the loss; with a weight of 0 it is only reported."""

    kl_loss_coef: float = 0.0
    """Weight of that KL."""

    kl_loss_type: Literal["k1", "k2", "k3", "low_var_kl"] = "k1"
    """Estimator of either KL. As a loss, k1 pulls nowhere on average."""

    use_unbiased_kl: bool = False
    """Weigh the KL in the loss by the policy ratio, whose gradient then counts too."""

    keep_old_actor: bool = False
    """Old log-probs are those of the weights that generated, also where training starts from newer ones."""

    use_opsm: bool = False
    """Do not push down the tokens of a sample that the policy has moved away from."""

    opsm_delta: float = 1e-4
    """Mean log-prob by which such a sample has moved."""

    use_opd: bool = False
    """On-policy distillation: subtract the gap to a teacher's log-probs from the advantages."""

    opd_type: Literal["sglang", "megatron"] | None = None
    """Where the teacher's log-probs come from: the samples (sglang), or a second model here (megatron)."""

    opd_kl_coef: float = 1.0
    """Weight of that gap."""

    opd_teacher_load: LocalPath | None = None
    """The teacher, for megatron: as `ref_load`, and of the policy's architecture."""

    opd_teacher_ckpt_step: PositiveInt | None = None
    """Which of the checkpoints in `opd_teacher_load`; the newest without it."""

    use_rollout_logprobs: bool = False
    """Old log-probs are those of the engine: one forward pass less."""

    use_tis: bool = False
    """Weigh tokens by trainer over engine probability, against the gap between the two."""

    tis_clip: PositiveFloat = 2.0
    """Largest such weight."""

    tis_clip_low: NonNegativeFloat = 0.0
    """Smallest such weight."""

    tis_mode: Literal["clip", "truncate", "mask", "icepop"] = "clip"
    """Weights beyond: moved to the bound (clip), to the upper one only (truncate), their tokens left out (mask), or
    0 (icepop)."""

    tis_level: Literal["token", "sequence", "geometric"] = "token"
    """Weight of a token: its own, or its sample's product, or geometric mean."""

    tis_batch_normalize: bool = False
    """Divide the weights of an optimizer step by their mean."""

    use_rs: bool = False
    """Leave out tokens whose weight at `rs_level` lies beyond `rs_lower_bound` or `rs_upper_bound`."""

    rs_level: Literal["token", "sequence", "geometric"] = "token"
    """As `tis_level`."""

    rs_lower_bound: NonNegativeFloat | None = None
    """`tis_clip_low` without it."""

    rs_upper_bound: PositiveFloat | None = None
    """`tis_clip` without it."""

    rs_veto_threshold: PositiveFloat | None = None
    """Leave out samples with a token whose weight is below."""

    get_mismatch_metrics: bool = False
    """Report how far engine and trainer are apart, also where nothing corrects for it."""

    custom_tis_function_path: str | None = None
    """`module.function` in place of these corrections; counts with use_tis or get_mismatch_metrics."""

    custom_reward_post_process_path: str | None = None
    """`module.function` from samples to raw rewards and those to train on, in place of normalising them."""

    custom_convert_samples_to_train_data_path: str | None = None
    """`module.function` from samples to a table of training data; keys of its own reach the loss."""

    rollout_data_postprocess_path: str | None = None
    """`module.function` that may change the training data once log-probs and advantages are known."""

    custom_advantage_function_path: str | None = None
    """`module.function` in place of the estimator."""

    custom_loss_function_path: str | None = None
    """`module.function` for custom_loss."""

    custom_pg_loss_reducer_function_path: str | None = None
    """`module.function` that makes what sums the policy loss over the tokens of a micro-batch."""

    null_reward: Literal["drop"] | float = "drop"
    """What to do with a sample whose scoring failed: leave it out and say so, or train on this number."""

    @property
    def grpo_std_normalization(self) -> bool:
        return not self.disable_grpo_std_normalization

    @property
    def rewards_normalization(self) -> bool:
        return not self.disable_rewards_normalization

    @property
    def computes_advantages(self) -> bool:
        return self.loss_type != "sft_loss" and not self.disable_compute_advantages_and_returns

    @property
    def needs_reference(self) -> bool:
        return self.kl_coef != 0 or self.use_kl_loss

    @property
    def uses_critic(self) -> bool:
        return self.advantage_estimator == "ppo"

    @property
    def shows_samples(self) -> bool:
        """Some function of the user's sees samples whole, or what they carry for the loss."""
        return any(
            (
                self.custom_reward_post_process_path,
                self.custom_convert_samples_to_train_data_path,
                self.rollout_data_postprocess_path,
                self.custom_advantage_function_path,
                self.custom_loss_function_path,
            )
        )

    def reference_version(self, iteration: int) -> int:
        """The version of the policy that an iteration's reference is; 0 is the model that it began with."""
        interval = self.ref_update_interval if self.needs_reference else None
        return 0 if interval is None else iteration // interval * interval

    @property
    def has_token_advantages(self) -> bool:
        """Advantages differ from token to token; otherwise each is the reward of its sample."""
        return self.computes_advantages and (
            self.advantage_estimator not in ("grpo", "gspo", "cispo")
            or self.normalize_advantages
            or self.use_opd
            or self.custom_advantage_function_path is not None
            or self.rollout_data_postprocess_path is not None
        )


Algorithm.digested_if_set = frozenset(Algorithm.model_fields) - BEFORE
