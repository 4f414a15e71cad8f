"""Small configurations of the families whose layers have states of one size."""

from __future__ import annotations

LFM2 = {
    "model_type": "lfm2",
    "vocab_size": 97,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "norm_eps": 1e-5,
    "conv_L_cache": 4,
    "conv_bias": True,
    "block_auto_adjust_ff_dim": True,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 16,
    "layer_types": ["conv", "full_attention", "conv"],
    "tie_word_embeddings": True,
}
QWEN = {
    "model_type": "qwen3_5_text",
    "vocab_size": 97,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "linear_conv_kernel_dim": 3,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "partial_rotary_factor": 0.25,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
}
MAMBA2 = {
    "model_type": "mamba2",
    "vocab_size": 97,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_heads": 6,
    "head_dim": 8,
    "state_size": 10,
    "n_groups": 2,
    "conv_kernel": 3,
    "expand": 2,
    "hidden_act": "silu",
    "layer_norm_epsilon": 1e-5,
    "time_step_limit": [0.01, 4.0],
    "tie_word_embeddings": False,
}
_EXPERTS = {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 24,
}
QWEN_NEXT = {
    **QWEN,
    "model_type": "qwen3_next",
    **_EXPERTS,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [1],
}
QWEN_MOE = {**QWEN, "model_type": "qwen3_5_moe_text", **_EXPERTS}
