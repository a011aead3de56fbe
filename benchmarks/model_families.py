"""Families of models, as transformers names their types, and what default configs leave out.

What only an engine reads is as the published models have it.
"""

from typing import Any

LINEAR, CONV, FULL = ["linear_attention"], ["conv"], ["full_attention"]
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {}, "llama4_text": {}, "qwen2": {}, "qwen3": {}, "qwen3_moe": {}, "qwen3_next": {},
    "qwen3_5_text": {}, "qwen3_5_moe_text": {},
    "qwen4_exp_text": {"indexer_n_heads": 16, "indexer_kv_heads": 1, "indexer_head_dim": 256,
                       "indexer_budget": 2048, "indexer_compress_ratio": 16},
    "mistral": {}, "ministral": {"head_dim": 128}, "ministral3": {}, "mixtral": {}, "gemma": {}, "gemma2": {},
    "gemma3_text": {}, "gemma3n_text": {}, "gemma4_text": {}, "gemma4_unified_text": {}, "phi": {},
    "phi3": {}, "phimoe": {}, "olmo": {}, "olmo2": {}, "olmo3": {}, "olmo_hybrid": {}, "olmoe": {},
    "smollm3": {}, "gpt_oss": {}, "granite": {}, "granite_swa": {}, "granitemoe": {},
    "granitemoehybrid": {"layer_types": 5 * LINEAR + FULL + 26 * LINEAR},
    "granitemoehybrid_dense": {"model_type": "granitemoehybrid", "layer_types": 32 * FULL,
                               "num_local_experts": 0},
    "nemotron": {"num_key_value_heads": 8}, "nemotron_h": {},
    "nemotron_h_dense": {"model_type": "nemotron_h", "layers_block_type": [*LINEAR, *FULL, "mlp"]},
    "lfm2": {"layer_types": 16 * (CONV + FULL), "conv_dim": 2560, "block_dim": 2560},
    "lfm2_moe": {"layer_types": 16 * (CONV + FULL), "conv_dim": 2048, "block_dim": 2048},
    "falcon_h1": {"mamba_d_ssm": 8192, "mamba_d_head": 64}, "deepseek_v2": {"num_experts_per_tok": 6},
    "deepseek_v3": {"topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    "glm": {}, "glm4": {}, "glm4_moe": {"head_dim": 128},
    "glm4_moe_lite": {"first_k_dense_replace": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    "kimi_linear": {},
    "ernie4_5": {}, "ernie4_5_moe": {}, "exaone4": {}, "exaone_moe": {}, "seed_oss": {},
    "bamba": {"attn_layer_indices": [1]}, "jamba": {}, "zamba2": {"n_mamba_heads": 80}, "mamba2": {},
    "falcon_mamba": {},
    "cohere2": {}, "minimax": {}, "minimax_m2": {}, "apertus": {}, "arcee": {},
    "hunyuan_v1_dense": {"head_dim": 128}, "starcoder2": {}, "stablelm": {}, "gpt_neox": {}, "gpt2": {},
    "recurrent_gemma": {}, "afmoe": {}, "nanochat": {}, "hy_v3": {}, "longcat_flash": {},
    "mimo_v2_flash": {}, "minicpm3": {}, "laguna": {}, "solar_open": {}, "cwm": {},
    "mellum": {}, "zaya": {}, "youtu": {},
    "qwen3_5": {}, "gemma3": {}, "gemma4": {"vision_config": {}}, "mistral3": {}, "llama4": {},
    "qwen3_vl": {}}     # with eyes
