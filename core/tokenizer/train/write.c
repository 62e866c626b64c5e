/* SPDX-License-Identifier: MIT
 *
 * Writes a trained tokenizer as Hugging Face's tokenizer.json and tokenizer_config.json.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/os/file.h"
#include "core/os/path.h"
#include "core/tokenizer/train/merges.h"

static json_t *describe_special(const struct tt_bpe_trained *trained)
{
    json_t *list = json_array();

    for (int i = 0; i < trained->n_special; i++)
        (void)json_array_append_new(list, json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", i, "content",
                                                    trained->token[i], "single_word", 0, "lstrip", 0, "rstrip", 0,
                                                    "normalized", 0, "special", 1));
    return list;
}

/* Merges as texts: all versions of `tokenizers` read them, and no token has a space. */
static json_t *describe_model(const struct tt_bpe_trained *trained)
{
    json_t *vocab = json_object(), *merges = json_array();

    for (int i = 0; i < trained->n_tokens; i++)
        (void)json_object_set_new(vocab, trained->token[i], json_integer(i));
    for (int i = 0; i < trained->n_merges; i++)
        (void)json_array_append_new(merges, json_sprintf("%s %s", trained->token[trained->merge[i].left],
                                                         trained->token[trained->merge[i].right]));
    return json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout", "unk_token",
                     "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0,
                     "ignore_merges", 0, "vocab", vocab, "merges", merges);
}

/* model_max_length is what transformers writes where there is no limit. */
static json_t *describe_config(const char *bos, const char *eos)
{
    json_t *json = json_pack("{s:s, s:b, s:I}", "tokenizer_class", "PreTrainedTokenizerFast",
                             "clean_up_tokenization_spaces", 0, "model_max_length", (json_int_t)INT_MAX);

    if (bos)
        (void)json_object_set_new(json, "bos_token", json_string(bos));
    if (eos)
        (void)json_object_set_new(json, "eos_token", json_string(eos));
    return json;
}

/* Takes both values. */
static int save(const char *folder, json_t *json, json_t *config)
{
    char *text[2] = {NULL, NULL},
         *path[2] = {tt_format("%s/tokenizer.json", folder), tt_format("%s/tokenizer_config.json", folder)};
    int rc = 0;

    TT_TRY(tt_json_dump(json, path[0], &text[0]));
    TT_TRY(tt_json_dump(config, path[1], &text[1]));
    TT_TRY(tt_file_replace_pair((struct tt_new_file){path[0], text[0], strlen(text[0])},
                                (struct tt_new_file){path[1], text[1], strlen(text[1])}));
out:
    for (int i = 0; i < 2; i++) {
        free(text[i]);
        tt_free(path[i]);
    }
    json_decref(json);
    json_decref(config);
    return rc;
}

int tt_bpe_write(const struct tt_bpe_trained *trained, const struct tt_word_counts *words, const char *bos,
                 const char *eos, const char *folder)
{
    json_t *json =
        json_pack("{s:s, s:n, s:n, s:o, s:n, s:O, s:n, s:{s:s, s:b, s:b, s:b}, s:o}", "version", "1.0", "truncation",
                  "padding", "added_tokens", describe_special(trained), "normalizer", "pre_tokenizer", words->json,
                  "post_processor", "decoder", "type", "ByteLevel", "add_prefix_space", 1, "trim_offsets", 1,
                  "use_regex", 1, "model", describe_model(trained));
    int rc;

    if ((rc = tt_folder_make(folder)) < 0) {
        json_decref(json);
        return rc;
    }
    TT_TRY(save(folder, json, describe_config(bos, eos)));
out:
    return rc;
}
