/* SPDX-License-Identifier: MIT */
#ifndef TT_KEYS_CHOICES_H
#define TT_KEYS_CHOICES_H

/**
 * The words that configuration keys choose from. Each list is a set: X(constant, "word") is a choice, ALIAS(constant,
 * "word") another spelling of it. Each set becomes an `enum tt_<set>_choice` here and a table in schema.c. Keys name
 * their set in schema.def. Keys of kind ENUM store the constant, keys of kind WORD store the word.
 */

/* clang-format off */
#define TT_DATASET_CHOICES(X, ALIAS) \
    X(TT_DATASET_KJV, "kjv") X(TT_DATASET_KJV_VALIDATION, "kjv_validation") X(TT_DATASET_TEXT, "text") \
    X(TT_DATASET_JSONL, "jsonl") X(TT_DATASET_PARQUET, "parquet") X(TT_DATASET_ARROW, "arrow") \
    X(TT_DATASET_JSONL_SFT, "jsonl_sft") X(TT_DATASET_TOKENS, "tokens") \
    X(TT_DATASET_TOKENS_U16, "tokens_u16") \
    ALIAS(TT_DATASET_JSONL, "c4") ALIAS(TT_DATASET_JSONL, "c4_test") ALIAS(TT_DATASET_JSONL, "c4_validation")
#define TT_CHAT_CHOICES(X, ALIAS) \
    X(TT_CHAT_AUTO, "auto") X(TT_CHAT_LLAMA3, "llama3") X(TT_CHAT_QWEN3, "qwen3") X(TT_CHAT_CHATML, "chatml")
#define TT_LONG_CHOICES(X, ALIAS) \
    X(TT_LONG_TRUNCATE, "truncate") X(TT_LONG_DROP, "drop") X(TT_LONG_ERROR, "error")
#define TT_DTYPE_CHOICES(X, ALIAS) \
    X(TT_DTYPE_FLOAT32, "float32") X(TT_DTYPE_BFLOAT16, "bfloat16")
#define TT_PACKING_CHOICES(X, ALIAS) \
    X(TT_PACKING_NONE, "default") X(TT_PACKING_BF16, "bfloat16") X(TT_PACKING_INT8, "int8") X(TT_PACKING_NF4, "nf4") \
    X(TT_PACKING_Q4_0, "q4_0") X(TT_PACKING_Q8_0, "q8_0")
#define TT_EXPORT_CHOICES(X, ALIAS) \
    X(TT_EXPORT_FLOAT32, "float32") X(TT_EXPORT_BFLOAT16, "bfloat16") X(TT_EXPORT_FLOAT16, "float16")
#define TT_SYNC_CHOICES(X, ALIAS) \
    X(TT_SYNC_EVERY_MICROBATCH, "every_microbatch") X(TT_SYNC_EVERY_RUN, "every_run") \
    X(TT_SYNC_LAST_MICROBATCH, "last_microbatch") X(TT_SYNC_AUTO, "auto")
#define TT_INIT_CHOICES(X, ALIAS) \
    X(TT_INIT_META, "meta") X(TT_INIT_FULL, "full") X(TT_INIT_LAYERWISE, "layerwise")
/* Every optimizer: OF(X, constant, row, "word", "what it does, for the help of optimizer.name"). core/optim defines
 * tt_optim_<row>, and uses this list too. */
#define TT_OPTIMIZERS(OF, X) \
    OF(X, TT_OPTIM_ADAMW, adamw, "AdamW", "AdamW applies weight decay separately from the gradient.") \
    OF(X, TT_OPTIM_ADAM, adam, "Adam", "Adam adds weight decay to the gradient.") \
    OF(X, TT_OPTIM_ADAMW_8BIT, adamw_8bit, "AdamW8bit", \
       "AdamW8bit is AdamW with moments of 8 bits, as in bitsandbytes, except for embeddings and for parameters of " \
       "fewer than 4096 elements.") \
    OF(X, TT_OPTIM_MUON, muon, "Muon", \
       "Muon orthogonalizes the momentum of every matrix in the transformer blocks; AdamW trains embeddings, output, " \
       "norms and biases.") \
    OF(X, TT_OPTIM_LION, lion, "Lion", "Lion moves each weight by the sign of its momentum.")
#define TT_OPTIM_DOC(unused, constant, row, word, doc) doc " "
#define TT_OPTIM_WORD(X, constant, row, word, doc) X(constant, word)
#define TT_OPTIM_CHOICES(X, ALIAS) \
    TT_OPTIMIZERS(TT_OPTIM_WORD, X) ALIAS(TT_OPTIM_ADAMW_8BIT, "adamw_8bit") \
    ALIAS(TT_OPTIM_ADAMW_8BIT, "adamw_bnb_8bit")
#define TT_ADJUST_CHOICES(X, ALIAS) \
    X(TT_ADJUST_MATCH_RMS_ADAMW, "match_rms_adamw") X(TT_ADJUST_ORIGINAL, "original") \
    X(TT_ADJUST_SPECTRAL_UNCLAMPED, "spectral_unclamped")
#define TT_DECAY_CHOICES(X, ALIAS) \
    X(TT_DECAY_LINEAR, "linear") X(TT_DECAY_SQRT, "sqrt") X(TT_DECAY_COSINE, "cosine")
#define TT_ENGINE_CHOICES(X, ALIAS) \
    X(TT_ENGINE_EAGER, "eager") X(TT_ENGINE_PLANNED, "planned") \
    ALIAS(TT_ENGINE_EAGER, "fsdp2") ALIAS(TT_ENGINE_PLANNED, "simple_fsdp")
#define TT_ORDER_CHOICES(X, ALIAS) \
    X(TT_ORDER_TREE, "tree") X(TT_ORDER_FAST, "fast")
#define TT_CONTEXT_CHOICES(X, ALIAS) \
    X(TT_CONTEXT_AUTO, "auto") X(TT_CONTEXT_ULYSSES, "ulysses") X(TT_CONTEXT_GATHER, "gather")
#define TT_BALANCE_CHOICES(X, ALIAS) X(TT_BALANCE_HEADTAIL, "headtail")
#define TT_AC_CHOICES(X, ALIAS) \
    X(TT_AC_NONE, "none") X(TT_AC_FULL, "full") X(TT_AC_SELECTIVE, "selective") X(TT_AC_AUTO, "auto")
#define TT_ASYNC_CHOICES(X, ALIAS) \
    X(TT_ASYNC_DISABLED, "disabled") X(TT_ASYNC_ASYNC, "async") ALIAS(TT_ASYNC_ASYNC, "async_with_pinned_mem")
#define TT_SAVE_CHOICES(X, ALIAS) \
    X(TT_SAVE_ALL, "all") X(TT_SAVE_FILTERED, "filtered")
#define TT_FILTER_CHOICES(X, ALIAS) \
    X(TT_FILTER_REPLICA0, "replica0") X(TT_FILTER_RANK0, "rank0") X(TT_FILTER_NODE_LEADER, "node_leader")
#define TT_LOAD_CHOICES(X, ALIAS) \
    X(TT_LOAD_ONCE, "once") X(TT_LOAD_ALL, "all")
#define TT_EXCLUDE_CHOICES(X, ALIAS) \
    X(TT_EXCLUDE_OPTIMIZER, "optimizer") X(TT_EXCLUDE_LR_SCHEDULER, "lr_scheduler") \
    X(TT_EXCLUDE_DATALOADER, "dataloader") X(TT_EXCLUDE_TRAIN_STATE, "train_state")
#define TT_RESHARD_CHOICES(X, ALIAS) \
    X(TT_RESHARD_DEFAULT, "default") X(TT_RESHARD_ALWAYS, "always") X(TT_RESHARD_NEVER, "never") \
    X(TT_RESHARD_LAST_LAYER, "last_layer") X(TT_RESHARD_AUTO, "auto") \
    ALIAS(TT_RESHARD_ALWAYS, "true") ALIAS(TT_RESHARD_NEVER, "false")
#define TT_WRAP_CHOICES(X, ALIAS) \
    X(TT_WRAP_BLOCK, "block") X(TT_WRAP_MODEL, "model") X(TT_WRAP_PARAM, "param")
#define TT_RULE_CHOICES(X, ALIAS) \
    X(TT_RULE_NORMAL, "normal(STD)") X(TT_RULE_NORMAL_CUT, "normal(STD,CUT)") X(TT_RULE_UNIFORM, "uniform(LOW,HIGH)") \
    X(TT_RULE_CONSTANT, "constant(VALUE)") X(TT_RULE_ZEROS, "zeros") X(TT_RULE_ONES, "ones")
#define TT_PIPE_CHOICES(X, ALIAS) \
    X(TT_PIPE_1F1B, "1F1B") X(TT_PIPE_GPIPE, "GPipe") X(TT_PIPE_LOOPED_BFS, "LoopedBFS") \
    X(TT_PIPE_INTERLEAVED_1F1B, "Interleaved1F1B") X(TT_PIPE_INTERLEAVED_ZERO_BUBBLE, "InterleavedZeroBubble") \
    X(TT_PIPE_ZBV_ZERO_BUBBLE, "ZBVZeroBubble") X(TT_PIPE_DUAL_PIPE_V, "DualPipeV") \
    X(TT_PIPE_CSV_SINGLE, "PipelineScheduleSingle") X(TT_PIPE_CSV, "PipelineScheduleMulti") \
    ALIAS(TT_PIPE_CSV, "_PipelineScheduleRuntime")
#define TT_PART_CHOICES(X, ALIAS) X(TT_PART_NAMES, "[names of modules]")
#define TT_REGEX_CHOICES(X, ALIAS) X(TT_REGEX_ANY, "regex")
#define TT_FILE_CHOICES(X, ALIAS) X(TT_FILE_ANY, "files")
#define TT_FACTOR_CHOICES(X, ALIAS) X(TT_FACTOR_NUMBER, "FACTOR")
#define TT_MODULE_CHOICES(X, ALIAS) \
    X(TT_MODULE_Q, "q_proj") X(TT_MODULE_K, "k_proj") X(TT_MODULE_V, "v_proj") X(TT_MODULE_O, "o_proj") \
    X(TT_MODULE_GATE, "gate_proj") X(TT_MODULE_UP, "up_proj") X(TT_MODULE_DOWN, "down_proj") \
    X(TT_MODULE_QKV, "qkv_proj") X(TT_MODULE_GATE_UP, "gate_up_proj") X(TT_MODULE_FC, "c_fc") \
    X(TT_MODULE_PROJ, "c_proj")

/* All sets: S(set, list). */
#define TT_CHOICE_SETS(S) \
    S(dataset, TT_DATASET_CHOICES) S(dtype, TT_DTYPE_CHOICES) S(export, TT_EXPORT_CHOICES) S(sync, TT_SYNC_CHOICES) \
    S(init, TT_INIT_CHOICES) S(optim, TT_OPTIM_CHOICES) S(decay, TT_DECAY_CHOICES) S(engine, TT_ENGINE_CHOICES) \
    S(order, TT_ORDER_CHOICES) S(context, TT_CONTEXT_CHOICES) S(balance, TT_BALANCE_CHOICES) S(ac, TT_AC_CHOICES) \
    S(async, TT_ASYNC_CHOICES) S(save, TT_SAVE_CHOICES) \
    S(load, TT_LOAD_CHOICES) S(filter, TT_FILTER_CHOICES) S(exclude, TT_EXCLUDE_CHOICES) \
    S(reshard, TT_RESHARD_CHOICES) S(wrap, TT_WRAP_CHOICES) \
    S(rule, TT_RULE_CHOICES) S(regex, TT_REGEX_CHOICES) S(file, TT_FILE_CHOICES) \
    S(factor, TT_FACTOR_CHOICES) S(chat, TT_CHAT_CHOICES) \
    S(adjust, TT_ADJUST_CHOICES) S(long, TT_LONG_CHOICES) S(pipe, TT_PIPE_CHOICES) S(part, TT_PART_CHOICES) \
    S(module, TT_MODULE_CHOICES) S(packing, TT_PACKING_CHOICES)

#define TT_CHOICE_CONSTANT(constant, word) constant,
#define TT_CHOICE_SKIP(constant, word)
#define S(set, list) enum tt_##set##_choice { list(TT_CHOICE_CONSTANT, TT_CHOICE_SKIP) };
TT_CHOICE_SETS(S)
#undef S
/* clang-format on */

#endif
