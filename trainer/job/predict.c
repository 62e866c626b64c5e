/* SPDX-License-Identifier: MIT
 *
 * Memory, traffic and time of all places of a pipeline. If several ranks share a vocabulary and their number does not
 * divide its rows, the last of them has fewer rows and so runs its own program.
 */
#include "trainer/job/predict.h"

#include <math.h>

#include "core/base/mem.h"
#include "core/os/team.h"
#include "core/program/instr/instr.h"
#include "parallel/comm/collectives.h"
#include "parallel/planner/cost.h"

/* Sums and maxima that grow as one place after another is planned. */
struct folding {
    const struct tt_job *job;
    const struct tt_machine *machine;
    struct tt_stage_times *stages; /* [n_stages]; NULL: no pipeline */
    struct tt_stage_times *most;   /* the same times, if all tokens choose the experts of one rank */
    double send;
    double more;   /* without a pipeline: by how many seconds such a step is longer */
    double *alone; /* [places] seconds of a step, if no place waits for another */
    struct tt_job_prediction p;
};

/* The time of a stage if all tokens choose the experts of one rank. It does not change for separate weight parts. */
static struct tt_stage_times most_times(const struct folding *f, const struct tt_graph *graph, int threads,
                                        struct tt_stage_times even)
{
    for (int n = 0; n < graph->n_nodes; n++) {
        double more =
            tt_cost_node_most_sec(f->machine, graph, n, threads) - tt_cost_node_sec(f->machine, graph, n, threads);

        even.forward += graph->nodes[n].backward ? 0.0 : more;
        even.input += graph->nodes[n].backward ? more : 0.0;
        even.full += graph->nodes[n].backward ? more : 0.0;
    }
    return even;
}

/* The additional time of the nodes of a program in that case. */
static double more_sec(const struct folding *f, const struct tt_program *program)
{
    double more = 0.0;

    for (int i = 0; i < program->n_instrs; i++) {
        const struct tt_instr *instr = &program->instrs[i];
        const struct tt_graph *graph = instr->node == TT_NONE ? NULL : tt_instr_graph(program, instr);

        if (graph && tt_node_routed_bytes(graph, instr->node) > 0)
            more += tt_cost_node_most_sec(f->machine, graph, instr->node, program->threads) -
                    tt_cost_node_sec(f->machine, graph, instr->node, program->threads);
    }
    return more;
}

static void fold_time(struct folding *f, const struct tt_program *program, int place)
{
    struct tt_timeline time;
    double transfers = 0.0;

    tt_cost_simulate(f->machine, program, &time);
    for (int i = 0; i < program->n_instrs; i++) {
        const struct tt_instr *instr = &program->instrs[i];

        if (tt_instr_row(instr)->begins && tt_purpose_row(instr->purpose)->among == TT_AMONG_STAGES)
            transfers += time.exposed[i];
    }
    f->alone[place] = time.step_sec - transfers;
    f->p.exposed_sec = fmax(f->p.exposed_sec, time.exposed_sec - transfers);
    tt_timeline_release(&time);
    for (int s = 0; f->stages && s < program->n_stages; s++) {
        const struct tt_stage *stage = &program->stages[s];
        struct tt_pipeline_times times =
            tt_cost_pipeline(f->machine, stage, 1, program->threads, &f->stages[stage->number]);

        f->send = fmax(f->send, times.send);
        f->most[stage->number] = most_times(f, stage->graph, program->threads, f->stages[stage->number]);
    }
    f->more = fmax(f->more, more_sec(f, program));
}

/* n: the number of ranks that run this program. */
static void fold_bytes(struct folding *f, const struct tt_engine *engine, int rank, int n)
{
    const struct tt_program *program = tt_engine_program(engine);
    struct tt_engine_memory memory = tt_engine_memory(engine);
    int64_t payload = tt_program_payload(program), routed, routed_most;

    if (f->p.payload_sum == 0 && f->p.memory.total == 0) {
        f->p.memory = memory;
        f->p.rank = f->p.sender = rank;
        f->p.payload_bytes = payload;
    }
    if (memory.total > f->p.memory.total) {
        f->p.memory = memory;
        f->p.rank = rank;
    }
    if (payload > f->p.payload_bytes) {
        f->p.payload_bytes = payload;
        f->p.sender = rank;
    }
    f->p.payload_sum += payload * n;
    for (int i = 0; i < TT_INIT_MODES; i++) {
        int64_t bytes = tt_engine_init_bytes(engine, (enum tt_init_choice)i);

        f->p.init_bytes[i] = bytes > f->p.init_bytes[i] ? bytes : f->p.init_bytes[i];
    }
    routed = tt_program_routed_bytes(program, &routed_most);
    f->p.routed_bytes = routed > f->p.routed_bytes ? routed : f->p.routed_bytes;
    f->p.routed_most = routed_most > f->p.routed_most ? routed_most : f->p.routed_most;
}

/* The runs of a step follow one another. While a place does its other work, the others wait. */
static int find_step(struct folding *f, int places)
{
    const struct tt_pipeline *pipeline = f->job->pipeline;
    struct tt_pipeline_times times = {f->stages, f->send}, most = {f->most, f->send};
    struct tt_pipeline_run worst = {0};
    double runs, besides = 0.0;
    int rc = 0;

    f->p.step_sec = f->alone[0];
    f->p.step_most_sec = f->p.step_sec + f->more;
    if (!pipeline)
        return 0;
    TT_TRY(tt_pipeline_simulate(pipeline, &times, &f->p.run));
    if (f->p.routed_most)
        TT_TRY(tt_pipeline_simulate(pipeline, &most, &worst));
    runs = (double)f->job->microbatches / pipeline->microbatches;
    for (int place = 0; place < places; place++)
        besides = fmax(besides, f->alone[place] - runs * f->p.run.busy[place]);
    f->p.step_sec = runs * f->p.run.makespan + besides;
    f->p.step_most_sec = f->p.routed_most ? runs * worst.makespan + besides : f->p.step_sec;
out:
    tt_pipeline_run_release(&worst);
    return rc;
}

/* --- the programs of a job --- */

/* The ranks that run the same program. */
struct kind {
    int rank; /* the lowest of these ranks */
    int n;
    int place;
    bool is_first; /* the first of the kinds at this place */
};

struct kinds {
    struct kind *of; /* [n], ordered by place */
    int n;
};

/* Whether the last of the ranks that share layers has fewer rows of the vocabulary than the others: true only if the
 * place of the pipeline holds the embeddings or the output. */
static bool last_has_fewer(const struct tt_job *job, int place)
{
    const struct tt_stage_places *places = job->places;
    int last = tt_model_modules(job->model) - 1;
    bool has_vocabulary = !places || places->rank_of_stage[places->module_stage[0]] == place ||
                          places->rank_of_stage[places->module_stage[last]] == place;

    return job->mesh.size[TT_MESH_TP] > 1 && job->model->dims.vocab_size % job->mesh.tp_grains != 0 && has_vocabulary;
}

static struct kinds kinds_of(const struct tt_job *job)
{
    int places = tt_mesh_size(&job->mesh, TT_GROUP_PP), tp = job->mesh.size[TT_MESH_TP];
    int all = job->mesh.n_ranks / places;
    struct kinds kinds = {tt_calloc(2 * (size_t)places, sizeof *kinds.of), 0};

    for (int place = 0; place < places; place++) {
        int first = tt_mesh_member(&job->mesh, 0, TT_GROUP_PP, place),
            last = tt_mesh_member(&job->mesh, first, TT_GROUP_TP, tp - 1);
        int fewer = last_has_fewer(job, place) ? all / tp : 0;

        kinds.of[kinds.n++] = (struct kind){first, all - fewer, place, true};
        if (fewer)
            kinds.of[kinds.n++] = (struct kind){last, fewer, place, false};
    }
    return kinds;
}

/* The kind of a rank. */
static int kind_of(const struct tt_job *job, const struct kinds *kinds, int rank)
{
    int place = tt_mesh_place(&job->mesh, rank, TT_GROUP_PP).index, k = 0;
    bool is_last = tt_mesh_coordinate(&job->mesh, rank, TT_MESH_TP) == job->mesh.size[TT_MESH_TP] - 1;

    while (kinds->of[k].place != place)
        k++;
    return k + (last_has_fewer(job, place) && is_last);
}

/* The arguments for planning on all cores. */
struct planning {
    const struct tt_job *job;
    const struct kinds *kinds;
    int own;                    /* the kind that is already planned, or TT_NONE */
    struct tt_engine **engines; /* [kinds] */
};

static void plan_kind(void *arg, int64_t kind, int worker)
{
    const struct planning *w = arg;

    (void)worker;
    if (kind != w->own && tt_engine_new(&w->job->engine, NULL, w->kinds->of[kind].rank, &w->engines[kind]) < 0)
        w->engines[kind] = NULL; /* the caller plans it again, to get the message */
}

int tt_job_predict(const struct tt_job *job, const struct tt_machine *machine, const struct tt_engine *engine, int rank,
                   struct tt_job_prediction *ret_prediction)
{
    int places = tt_mesh_size(&job->mesh, TT_GROUP_PP), rc = 0;
    struct kinds kinds = kinds_of(job);
    int own = engine ? kind_of(job, &kinds, rank) : TT_NONE;
    struct folding f = {.job = job, .machine = machine};
    struct tt_engine **others = tt_calloc((size_t)kinds.n, sizeof(struct tt_engine *));
    struct planning planning = {job, &kinds, own, others};
    struct tt_team *team = NULL;
    int cores = tt_team_cores();
    f.alone = tt_calloc((size_t)places, sizeof *f.alone);
    if (job->pipeline)
        f.stages = tt_calloc(2 * (size_t)job->pipeline->n_stages, sizeof *f.stages);
    f.most = f.stages ? f.stages + job->pipeline->n_stages : NULL;
    if (kinds.n > 1 && cores > 1) { /* plans the kinds in parallel */
        TT_TRY(tt_team_new(cores < kinds.n ? cores : kinds.n, &team));
        tt_team_run(team, kinds.n, plan_kind, &planning);
    }
    for (int k = 0; k < kinds.n; k++) {
        const struct kind *kind = &kinds.of[k];
        const struct tt_engine *of;

        if (k != own && !others[k])
            TT_TRY(tt_engine_new(&job->engine, NULL, kind->rank, &others[k]));
        of = k == own ? engine : others[k];
        fold_bytes(&f, of, kind->rank, kind->n);
        if (kind->is_first)
            fold_time(&f, tt_engine_program(of), kind->place);
        tt_engine_free(others[k]);
        others[k] = NULL;
    }
    TT_TRY(find_step(&f, places));
    *ret_prediction = f.p;
    f.p.run = (struct tt_pipeline_run){0};
out:
    for (int k = 0; k < kinds.n; k++)
        tt_engine_free(others[k]);
    tt_free(others);
    tt_team_free(team);
    tt_pipeline_run_release(&f.p.run);
    tt_free(f.alone);
    tt_free(f.stages);
    tt_free(kinds.of);
    return rc;
}

struct predicting {
    const struct tt_job *job;
    const struct tt_machine *machine;
    const struct tt_engine *engine;
    struct tt_job_prediction p;
};

static int predict(void *arg)
{
    struct predicting *w = arg;

    return tt_job_predict(w->job, w->machine, w->engine, 0, &w->p);
}

int tt_job_predict_once(const struct tt_job *job, struct tt_comm *comm, const struct tt_machine *machine,
                        const struct tt_engine *engine, struct tt_job_prediction *ret_prediction)
{
    struct predicting w = {job, machine, engine, {0}};
    struct tt_job_prediction all;
    int rc = 0;

    TT_TRY(tt_comm_agree(comm, comm->rank == 0 ? tt_comm_work(comm, predict, &w) : 0));
    all = w.p;
    all.run = (struct tt_pipeline_run){.makespan = w.p.run.makespan, .bubble_share = w.p.run.bubble_share};
    TT_TRY(tt_comm_broadcast(comm, &all, sizeof all, 0));
    *ret_prediction = all;
out:
    tt_job_prediction_release(&w.p);
    return rc;
}

void tt_job_prediction_release(struct tt_job_prediction *p)
{
    tt_pipeline_run_release(&p->run);
    *p = (struct tt_job_prediction){0};
}

void tt_job_rank_text(const struct tt_job *job, int rank, struct tt_text *out)
{
    int place = tt_mesh_place(&job->mesh, rank, TT_GROUP_PP).index, n = 0, found = 0;

    tt_text_add(out, "rank %d", rank);
    if (!job->places)
        return;
    for (int s = 0; s < job->places->n_stages; s++)
        n += job->places->rank_of_stage[s] == place;
    tt_text_add(out, " (stage%s ", n == 1 ? "" : "s");
    for (int s = 0; s < job->places->n_stages; s++)
        if (job->places->rank_of_stage[s] == place)
            tt_text_add(out, "%s%d", found++ ? ", " : "", s);
    tt_text_add(out, ")");
}

/* --- gradient_sync auto --- */

/* Appends how often the alternative reduces: "once per run of 8 microbatches". */
static void add_how_often(const struct tt_engine_options *o, struct tt_text *out)
{
    int block = tt_engine_block(o);

    if (block == o->microbatches)
        tt_text_add(out, "once a step of %d microbatches", block);
    else
        tt_text_add(out, "once per run of %d microbatches", block);
}

static void add_needs(const struct tt_job_prediction *p, const struct tt_job *job, struct tt_text *out)
{
    char step[32], memory[32];

    tt_text_add(out, "%s a step with %s a rank", tt_text_duration(step, sizeof step, p->step_sec),
                tt_text_bytes(memory, sizeof memory, (double)(p->memory.total + job->staging_bytes)));
}

/* Why there is no choice; NULL: there is one. */
static const char *no_choice(const struct tt_engine_options *o, bool is_fast)
{
    if (tt_mesh_size(&o->mesh, TT_GROUP_FSDP) == 1)
        return "one shard reduces nothing";
    if (tt_engine_block(o) == 1)
        return "there is one microbatch";
    if (!is_fast && !tt_engine_is_exact(o))
        return "other sums would change the bits";
    return NULL;
}

static int compare(struct tt_job *job, const struct tt_job *other, struct tt_text *why)
{
    struct tt_job_prediction each = {0}, joined = {0};
    bool fits, faster;
    char limit[32];
    int rc = 0;

    TT_TRY(tt_job_predict(job, &job->engine.machine, NULL, 0, &each));
    TT_TRY(tt_job_predict(other, &job->engine.machine, NULL, 0, &joined));
    fits = joined.memory.total <= job->engine.memory_limit;
    faster = other->engine.reduce == TT_REDUCE_LAST || joined.step_sec < 0.999 * each.step_sec;
    if (fits && faster)
        job->engine.reduce = other->engine.reduce;
    if (fits && faster) {
        add_how_often(&other->engine, why);
        tt_text_add(why, ": ");
        add_needs(&joined, job, why);
        tt_text_add(why, " predicted; after each microbatch: ");
        add_needs(&each, job, why);
    } else {
        tt_text_add(why, "after each microbatch: ");
        add_needs(&each, job, why);
        tt_text_add(why, " predicted; ");
        add_how_often(&other->engine, why);
        tt_text_add(why, ": ");
        add_needs(&joined, job, why);
        if (!fits)
            tt_text_add(why, ", but only %s are allowed",
                        tt_text_bytes(limit, sizeof limit, (double)(job->engine.memory_limit + job->staging_bytes)));
    }
out:
    tt_job_prediction_release(&each);
    tt_job_prediction_release(&joined);
    return rc;
}

int tt_job_choose_sync(enum tt_sync_choice sync, bool is_fast, struct tt_job *job, char **ret_why)
{
    struct tt_job other = *job;
    struct tt_text why = {0};
    const char *reason;
    int rc = 0;

    *ret_why = NULL;
    job->engine.reduce = tt_job_reduce_when(sync);
    if (sync != TT_SYNC_AUTO)
        return 0;
    other.engine.reduce =
        is_fast && (!job->pipeline || tt_pipeline_ascends(job->pipeline)) ? TT_REDUCE_LAST : TT_REDUCE_RUNS;
    reason = no_choice(&other.engine, is_fast);
    if (reason)
        tt_text_add(&why, "after each microbatch: %s", reason);
    else
        TT_TRY(compare(job, &other, &why));
    *ret_why = why.text;
    why = (struct tt_text){0};
out:
    tt_text_release(&why);
    return rc;
}

int tt_job_engine_alone(struct tt_config *cfg, struct tt_job *job, int rank, struct tt_engine **ret_engine)
{
    int rc = 0;

    TT_TRY(tt_job_choose_sync(cfg->training.gradient_sync, cfg->parallelism.reduction_order == TT_ORDER_FAST, job,
                              &job->sync_why));
    TT_TRY(tt_engine_new(&job->engine, NULL, rank, ret_engine));
    cfg->training.gradient_sync = tt_job_sync_of(job->engine.reduce);
out:
    return rc;
}
