/* SPDX-License-Identifier: MIT */
#ifndef TT_MATH_REAL_H
#define TT_MATH_REAL_H

#include <float.h>
#include <math.h>
#include <stdint.h>

/**
 * The type in which ops and their portable kernels compute. Their sources are compiled twice: for float, which computes
 * float32 and bfloat16, and with TT_WIDE for double, which computes float64 (core/meson.build). Every function and row
 * that both copies define has another name in the second one; tt_op_row_of and tt_step_row_of choose between them.
 *
 * A new exported function of core/ops, core/optim or core/kernels/matmul.c needs a line below; without it the link
 * fails, because the function is defined twice.
 */
#ifdef TT_WIDE

typedef double tt_real;
typedef int64_t tt_real_bits;
#define TT_REAL_BITS_MAX INT64_MAX
#define TT_REAL_TYPE     TT_F64
#define TT_REAL_MAX      DBL_MAX
#define TT_OF_TYPE(name) name##_f64

/* NOLINTBEGIN(readability-identifier-naming): names of functions. Names that are also those of structs: */
#define tt_gemv(...)                 tt_gemv_f64(__VA_ARGS__)
#define tt_kernels(...)              tt_kernels_f64(__VA_ARGS__)
#define tt_matmul(...)               tt_matmul_f64(__VA_ARGS__)
#define tt_op_row(...)               tt_op_row_f64(__VA_ARGS__)
#define tt_optim_row(...)            tt_optim_row_f64(__VA_ARGS__)
#define tt_router_token_factors(...) tt_router_token_factors_f64(__VA_ARGS__)
#define tt_step_row(...)             tt_step_row_f64(__VA_ARGS__)

#define tt_attention_bwd_scratch       tt_attention_bwd_scratch_f64
#define tt_attention_fwd_scratch       tt_attention_fwd_scratch_f64
#define tt_attention_lines             tt_attention_lines_f64
#define tt_attention_row_scratch       tt_attention_row_scratch_f64
#define tt_attention_shape_of          tt_attention_shape_of_f64
#define tt_attention_sinks             tt_attention_sinks_f64
#define tt_attention_widest            tt_attention_widest_f64
#define tt_call_in_at                  tt_call_in_at_f64
#define tt_call_out_at                 tt_call_out_at_f64
#define tt_experts_run                 tt_experts_run_f64
#define tt_experts_scratch_floats      tt_experts_scratch_floats_f64
#define tt_gemv_tile                   tt_gemv_tile_f64
#define tt_gemv_tiles                  tt_gemv_tiles_f64
#define tt_grain_fits                  tt_grain_fits_f64
#define tt_grain_or                    tt_grain_or_f64
#define tt_grain_size                  tt_grain_size_f64
#define tt_graph_grad_value            tt_graph_grad_value_f64
#define tt_graph_node                  tt_graph_node_f64
#define tt_graph_try_node              tt_graph_try_node_f64
#define tt_head_chunk_rows             tt_head_chunk_rows_f64
#define tt_matmul_part                 tt_matmul_part_f64
#define tt_matmul_partial_floats       tt_matmul_partial_floats_f64
#define tt_matmul_scratch_floats       tt_matmul_scratch_floats_f64
#define tt_matmul_store                tt_matmul_store_f64
#define tt_matmul_tile                 tt_matmul_tile_f64
#define tt_matmul_tiles                tt_matmul_tiles_f64
#define tt_node_counted                tt_node_counted_f64
#define tt_node_routes                 tt_node_routes_f64
#define tt_op_acc_fits                 tt_op_acc_fits_f64
#define tt_op_cost                     tt_op_cost_f64
#define tt_op_elements                 tt_op_elements_f64
#define tt_op_infer                    tt_op_infer_f64
#define tt_op_is_bf16                  tt_op_is_bf16_f64
#define tt_op_mismatch                 tt_op_mismatch_f64
#define tt_op_output                   tt_op_output_f64
#define tt_op_positions_fit            tt_op_positions_fit_f64
#define tt_op_run_rows                 tt_op_run_rows_f64
#define tt_op_run_sums                 tt_op_run_sums_f64
#define tt_op_run_tiles                tt_op_run_tiles_f64
#define tt_op_sum_grains               tt_op_sum_grains_f64
#define tt_op_sums_scratch             tt_op_sums_scratch_f64
#define tt_optim_has_moment            tt_optim_has_moment_f64
#define tt_orthogonalize_scratch_bytes tt_orthogonalize_scratch_bytes_f64
#define tt_pairs_count                 tt_pairs_count_f64
#define tt_pairs_gradients             tt_pairs_gradients_f64
#define tt_pairs_multiply              tt_pairs_multiply_f64
#define tt_pairs_of                    tt_pairs_of_f64
#define tt_pairs_rows                  tt_pairs_rows_f64
#define tt_pairs_scratch               tt_pairs_scratch_f64
#define tt_pairs_sums_floats           tt_pairs_sums_floats_f64
#define tt_router_factor_floats        tt_router_factor_floats_f64
#define tt_router_factors              tt_router_factors_f64
#define tt_router_loss_terms           tt_router_loss_terms_f64
#define tt_router_losses_apart         tt_router_losses_apart_f64
#define tt_row_blocks_of               tt_row_blocks_of_f64
#define tt_rule_add                    tt_rule_add_f64
#define tt_rule_backward               tt_rule_backward_f64
#define tt_rule_gradient               tt_rule_gradient_f64
#define tt_rule_move_last              tt_rule_move_last_f64
#define tt_rule_node                   tt_rule_node_f64
#define tt_rule_push                   tt_rule_push_f64
#define tt_rule_set                    tt_rule_set_f64
#define tt_rule_value                  tt_rule_value_f64
#define tt_rule_wanted                 tt_rule_wanted_f64
#define tt_sgemm_is_blas               tt_sgemm_is_blas_f64
#define tt_sgemm_scratch               tt_sgemm_scratch_f64
#define tt_step_cost                   tt_step_cost_f64
#define tt_update_next                 tt_update_next_f64
#define tt_update_random               tt_update_random_f64
#define tt_update_run                  tt_update_run_f64
/* NOLINTEND(readability-identifier-naming) */

#else

typedef float tt_real;
typedef int32_t tt_real_bits;
#define TT_REAL_BITS_MAX INT32_MAX
#define TT_REAL_TYPE     TT_F32
#define TT_REAL_MAX      FLT_MAX
#define TT_OF_TYPE(name) name

#endif

static inline tt_real tt_sqrt(tt_real x)
{
    return sizeof x == sizeof(float) ? (tt_real)sqrtf((float)x) : (tt_real)sqrt((double)x);
}

static inline tt_real tt_fabs(tt_real x)
{
    return x < 0 ? -x : x;
}

#endif
