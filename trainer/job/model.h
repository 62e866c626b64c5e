/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_JOB_MODEL_H
#define TT_TRAINER_JOB_MODEL_H

#include "core/base/error.h"
#include "core/config/config.h"
#include "core/models/model.h"

/** The model that a configuration means. A job (cli/job/job.h) has one; these functions come before it. */

/**
 * If the weights to start from are in a Hugging Face folder, takes what nobody set from it: that its format is Hugging
 * Face's, model.hf_assets_path and flavor hf. Sizes that are set stay. TT_EIO if the folder cannot be looked at.
 */
int tt_job_adopt_folder(struct tt_config *cfg) TT_MUST_CHECK;

/**
 * With flavor hf, sets model.name to the family in the folder's config.json, unless somebody set the key; then
 * tt_model_new checks that it is the same. TT_EDATA if config.json cannot be read or has no known model.
 */
int tt_job_adopt_family(struct tt_config *cfg) TT_MUST_CHECK;

/**
 * Sets model.vocab_size, if it is null, to the size of the tokenizer in model.hf_assets_path, padded to a multiple of
 * 64; the key's origin says so. The rows of the flavor stay if the tokenizer is that of its models, or fits and there
 * are weights to start from. A checkpoint that the run goes on with or begins from keeps its rows. Does nothing with
 * flavor hf, and if there is no tokenizer or no such model, which other code reports.
 */
int tt_job_adopt_vocabulary(struct tt_config *cfg) TT_MUST_CHECK;

/** The sizes that the configuration sets itself, in the form that tt_model_new takes. The flavor gives the others. */
struct tt_model_dims tt_job_model_overrides(const struct tt_config *cfg);

/**
 * Fills the model keys that the flavor decides, as tt_job_init does. Then the configuration has all sizes of the model.
 */
int tt_job_resolve_model(struct tt_config *cfg, const struct tt_model *model) TT_MUST_CHECK;

/**
 * The model, with the rules of its initial weights and the optimizer's groups of its parameters; the caller frees it
 * (tt_model_free). Errors: those of tt_model_new; TT_EUSAGE for a rule that is wrong.
 */
int tt_job_make_model(const struct tt_config *cfg, struct tt_model **ret_model) TT_MUST_CHECK;

#endif
