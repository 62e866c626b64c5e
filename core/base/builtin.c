/* SPDX-License-Identifier: MIT
 *
 * The built-in corpus and tokenizer; builtin.S puts the files into the program.
 */
#include "core/base/builtin.h"

extern const char tt_builtin_kjv_train[], tt_builtin_kjv_train_end[];
extern const char tt_builtin_kjv_validation[], tt_builtin_kjv_validation_end[];
extern const char tt_builtin_tokenizer[], tt_builtin_tokenizer_end[];
extern const char tt_builtin_tokenizer_config[], tt_builtin_tokenizer_config_end[];

struct tt_builtin tt_builtin_get(enum tt_builtin_id id)
{
    static const struct {
        const char *name, *begin, *end;
    } file[] = {
        [TT_BUILTIN_KJV_TRAIN] = {"built-in kjv_train.jsonl", tt_builtin_kjv_train, tt_builtin_kjv_train_end},
        [TT_BUILTIN_KJV_VALIDATION] = {"built-in kjv_validation.jsonl", tt_builtin_kjv_validation,
                                       tt_builtin_kjv_validation_end},
        [TT_BUILTIN_TOKENIZER] = {"built-in tokenizer.json", tt_builtin_tokenizer, tt_builtin_tokenizer_end},
        [TT_BUILTIN_TOKENIZER_CONFIG] = {"built-in tokenizer_config.json", tt_builtin_tokenizer_config,
                                         tt_builtin_tokenizer_config_end},
    };

    return (struct tt_builtin){file[id].name, file[id].begin, (size_t)(file[id].end - file[id].begin)};
}
