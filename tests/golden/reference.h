/* SPDX-License-Identifier: MIT */
#ifndef TT_TESTS_REFERENCE_H
#define TT_TESTS_REFERENCE_H

#include <math.h>

#include "core/base/json.h"
#include "tests/par/train_job.h"

/**
 * A training run of a Hugging Face model in float64, read from data/, which make_reference.py made. Weights and tokens
 * are read as `titan train` reads them.
 */
struct reference {
    char *folder;
    struct tt_model *model;
    struct tt_dataset *dataset;
    json_t *expect;
    struct train_job job;  /* without ranks and policies */
    const char *part;      /* the part of expect.json that is expected, such as "documents"; NULL: the plain run */
    float *before, *after; /* whole weights, in the model's order */
    float *averages;       /* the same, of the weights; NULL: not expected */
};

/** The names of all runs, which are those of the folders in data/, in order. They stay valid until the program ends. */
char **reference_names(int *ret_n);

/** Whether expect.json of a run has the part, or the run has a folder of that name. */
bool reference_has(const char *name, const char *part);

/** Whether the case of expect.json has a key that is not false. */
bool reference_is(const char *name, const char *key);

void reference_open(struct reference *reference, const char *name);
void reference_close(struct reference *reference);

/** Divides the data into the documents of expect.json, for which its "documents" gives the expected numbers. */
void reference_use_documents(struct reference *reference);

/** Replaces the data by the conversations of expect.json, for which its "chat" gives the expected numbers. */
void reference_use_chat(struct reference *reference);

/** Adds the z-loss of expect.json, for which its "z_loss" gives the expected numbers. */
void reference_use_z_loss(struct reference *reference);

/** Adds the auxiliary losses of routers of expect.json, for which its "router_losses" gives the expected numbers. */
void reference_use_router_losses(struct reference *reference);

/** Keeps averages of the weights, as the run "ema" of expect.json did; its averages are expected too. */
void reference_use_averages(struct reference *reference);

/**
 * Trains low-rank adapters instead, as make_lora_reference.py did: the model gets them, and the weights and the
 * expected numbers are those of that run.
 */
void reference_use_lora(struct reference *reference);

/** Trains the matrices of the blocks with Muon, as the run "muon" of expect.json did; its numbers and weights are
 * expected. */
void reference_use_muon(struct reference *reference);

/** Item `step` of one of the lists of expect.json, or of the part that is used. */
double reference_number(const struct reference *reference, const char *what, int step);

/** Loads the weights before the first step; for train_job.load, with the reference as its argument. */
int reference_load(struct tt_comm *comm, struct tt_engine *engine, void *reference);

/** rc; an error is printed. */
int reference_check(int rc);

/** The relative error of a value. */
static inline double reference_off(double found, double wanted)
{
    return fabs(found / wanted - 1.0);
}

#endif
