"""Rollout shards without an engine: transformers samples, so that tokens and log-probs are the policy's own."""

from __future__ import annotations

from pathlib import Path

from slime_stages.data.content import content_digest
from slime_stages.data.sample_table import write_samples
from slime_stages.data.schema import ROLLOUT
from slime_stages.launch.plans import ensure_plan
from slime_stages.lineage import rollout_inputs, shard_manifest_path
from slime_stages.prompts.table import read_prompt_table
from slime_stages.run.rundir import RunDir
from slime_stages.sample import Sample
from slime_stages.stage import StageCall, open_stage, read_config


def fake_rollout(run: RunDir, iteration: int) -> list[Path]:
    """Make and commit every rollout shard of an iteration, as the stage would; returns the manifests."""
    from stages.rollout.new_group import new_group

    plan = ensure_plan(run, iteration)
    config = read_config(run, plan.config_revision)
    prompts = read_prompt_table(run.prompts_path())
    manifests = []
    for shard in plan.shards:
        call = StageCall(stage="rollout", run=run.root, iteration=iteration, shard=shard.shard)
        path = shard_manifest_path(run, plan, "rollout", shard.shard)
        stage = open_stage(call, rollout_inputs(run, plan), plan=plan, config=config, path=path)
        assert stage is not None
        groups = [new_group(plan, config, prompts, position) for position in range(shard.start, shard.stop)]
        samples = [sample for group in groups for sample in group]
        sample_responses(samples, run.weights_path(plan.policy_version), version=plan.policy_version)
        name = path.with_suffix(".parquet").name
        temporary = stage.temporary(name)
        write_samples(temporary, samples, iteration=iteration, shard=shard.shard)
        content = content_digest(temporary, ROLLOUT)
        manifests.append(stage.commit(data=temporary, name=name, rows=len(samples), content=content))
    return manifests


def sample_responses(samples: list[Sample], weights: Path, *, version: int) -> None:
    """Fill in responses of the length asked for, sampled with each sample's seed."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(weights)
    for sample in samples:
        params = sample.sampling_params or {}
        generator = torch.Generator().manual_seed(params["sampling_seed"])
        ids, log_probs = list(sample.tokens), []
        for _ in range(params["max_new_tokens"]):
            with torch.no_grad():
                logits = model(torch.tensor([ids])).logits[0, -1] / params["temperature"]
            scores = logits.log_softmax(-1)
            token = int(torch.multinomial(scores.exp(), 1, generator=generator))
            ids.append(token)
            log_probs.append(float(scores[token]))
        response = ids[len(sample.tokens) :]
        sample.append_response_tokens(
            None,
            tokens=response,
            log_probs=log_probs,
            text=tokenizer.decode(response),
            meta_info={"finish_reason": {"type": "length"}, "weight_version": str(version)},
        )
