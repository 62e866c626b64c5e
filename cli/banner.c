/* SPDX-License-Identifier: MIT
 *
 * What a run says about itself before it starts and after it ends, on stderr.
 */
#include <inttypes.h>
#include <stdio.h>

#include <unistd.h>

#include "cli/trainer.h"
#include "core/ops/op.h"
#include "parallel/fsdp.h"

static bool is_power_of_two(int64_t n)
{
    return (n & (n - 1)) == 0;
}

bool tt_trainer_layout_exact(const struct tt_trainer *t)
{
    int64_t shards = t->mesh.size[TT_MESH_DP_SHARD], replicas = t->mesh.size[TT_MESH_DP_REPLICATE];

    return t->cfg->parallelism.reduction_order == TT_ORDER_TREE &&
           (t->cfg->training.gradient_sync == TT_SYNC_EVERY_MICROBATCH || t->microbatches == 1) &&
           is_power_of_two(shards) && (replicas == 1 || is_power_of_two(t->microbatches * shards));
}

/* A first guess: compute at the measured peak or at memory speed, whichever is slower, op by op; transfers on top. */
static double predict_step_sec(const struct tt_trainer *t)
{
    static const double memory_rate = 8e9, exchange_rate = 2e9; /* bytes a second of one rank, a cautious desktop */
    const struct tt_program *program = tt_engine_program(t->engine);
    double sec = 0.0;

    for (int n = 0; n < program->graph->n_nodes; n++) {
        struct tt_cost cost = {0};
        const struct tt_node *node = &program->graph->nodes[n];
        double compute, memory;

        tt_op_row(node->op)->cost(program->graph, node, &cost);
        compute = cost.flops / t->metrics.peak_flops;
        memory = cost.bytes / memory_rate;
        sec += compute > memory ? compute : memory;
    }
    return sec * (double)t->microbatches + (double)tt_fsdp_payload_bytes(program) / exchange_rate;
}

static void print_cores(const struct tt_trainer *t)
{
    int host = (int)sysconf(_SC_NPROCESSORS_ONLN), used = t->local_size * t->threads;

    (void)fprintf(stderr, "titan %s: %d rank%s x %d thread%s, %d core%s on this host", TITAN_VERSION, t->comm->size,
                  t->comm->size == 1 ? "" : "s", t->threads, t->threads == 1 ? "" : "s", host, host == 1 ? "" : "s");
    if (used < host)
        (void)fprintf(stderr,
                      ", %d idle: mpirun -n %d --map-by slot:PE=%d --bind-to core titan train ... would use them",
                      host - used, t->local_size, host / t->local_size);
    else if (used > host)
        (void)fprintf(stderr, ", oversubscribed: results are the same, times are not");
    (void)fprintf(stderr, "\n");
}

static void print_data(const struct tt_trainer *t)
{
    const struct tt_dataset_ref *ref = &t->data.dataset->ref;
    char documents[32], tokens[32], samples[32];

    (void)fprintf(stderr, "  data     %s: %s documents, %s tokens, %s samples of %" PRId64 " an epoch\n", ref->name,
                  tt_text_count(documents, sizeof documents, ref->info.n_documents),
                  tt_text_count(tokens, sizeof tokens, ref->info.n_tokens),
                  tt_text_count(samples, sizeof samples, tt_sampler_epoch_samples(t->data.sampler)),
                  t->cfg->training.seq_len);
}

/* The value of a key as a flag takes it. */
static void add_value(const struct tt_trainer *t, const char *label, const char *path, struct tt_text *out)
{
    tt_text_add(out, ", %s ", label);
    tt_config_value_text(t->cfg, tt_config_row_find(path), out);
}

static void print_policies(const struct tt_trainer *t)
{
    struct tt_text policies = {0};

    add_value(t, "wrap", "parallelism.fsdp_wrap_policy", &policies);
    add_value(t, "reshard", "parallelism.fsdp_reshard_after_forward", &policies);
    add_value(t, "prefetch", "parallelism.fsdp_prefetch", &policies);
    add_value(t, "engine", "parallelism.fsdp_engine", &policies);
    add_value(t, "sync", "training.gradient_sync", &policies);
    (void)fprintf(stderr,
                  "  batch    %" PRId64 " sequences a step = %d ranks x %" PRId64 " microbatches of %" PRId64 "\n"
                  "  sharding dp_replicate %d x dp_shard %d%s\n",
                  t->global_batch, tt_mesh_dp(&t->mesh), t->microbatches, t->cfg->training.local_batch_size,
                  t->mesh.size[TT_MESH_DP_REPLICATE], t->mesh.size[TT_MESH_DP_SHARD], policies.text);
    tt_text_release(&policies);
}

void tt_trainer_banner(const struct tt_trainer *t)
{
    char count[32], predicted[32], limit[32];

    print_cores(t);
    (void)fprintf(stderr, "  model    %s %s, %s parameters\n", t->model->row->name, t->model->flavor,
                  tt_text_count(count, sizeof count, tt_model_n_elements(t->model)));
    print_data(t);
    print_policies(t);
    (void)fprintf(stderr, "  weights  %s\n", t->weights_from);
    (void)fprintf(stderr, "  predicts %s a rank at its peak (limit %s), about %.2f s a step at %.0f GF/s a rank\n",
                  tt_text_bytes(predicted, sizeof predicted, (double)t->memory.total),
                  tt_text_bytes(limit, sizeof limit, (double)t->memory_limit), predict_step_sec(t),
                  t->metrics.peak_flops / 1e9);
    (void)fprintf(stderr, "  curve    %s\n",
                  tt_trainer_layout_exact(t) ? "layout-exact: the same bits for every power-of-two split of this batch"
                                             : "deterministic, but equal to other layouts only up to rounding");
    if (t->cfg->job.print_config) {
        struct tt_text text = {0};

        tt_config_to_yaml(t->cfg, &text);
        (void)fputs(text.text, stderr);
        tt_text_release(&text);
    }
    if (t->at.step >= t->cfg->training.steps)
        (void)fprintf(stderr,
                      "titan: the run is complete: step %" PRId64 " of %" PRId64
                      "; --training.steps=N goes on, --overwrite starts again\n",
                      t->at.step, t->cfg->training.steps);
    else
        (void)fprintf(stderr, "titan: training starts at step %" PRId64 "\n", t->at.step + 1);
}

void tt_trainer_farewell(const struct tt_trainer *t)
{
    (void)fprintf(stderr, "titan: training completed: step %" PRId64 ", %s\n", t->at.step, t->cfg->job.dump_folder);
}
