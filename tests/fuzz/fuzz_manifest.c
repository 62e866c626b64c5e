/* SPDX-License-Identifier: MIT
 *
 * A checkpoint's manifest. The checksum in it is wrong in nearly everything that a fuzzer invents, so the bytes are
 * also tried with the right checksum.
 */
#include <string.h>

#include "checkpoint/format/manifest.h"
#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "fuzz.h"

static void read_manifest(const char *text, size_t size)
{
    struct tt_manifest manifest;

    if (tt_manifest_parse(text, size, "fuzz", &manifest) < 0)
        return;
    if (tt_manifest_check_cover(&manifest) == 0)
        (void)tt_manifest_group_size(&manifest, TT_CKPT_MODEL, NULL);
    tt_manifest_release(&manifest);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tt_text text = {0};

    read_manifest((const char *)data, size);
    if (memchr(data, 0, size))
        return 0;
    tt_text_add(&text, "%.*s", (int)size, (const char *)data);
    tt_text_add(&text, ",\n\"self_crc32c\": \"%08x\"\n}\n", tt_crc32c(0, data, size));
    read_manifest(text.text, text.size);
    tt_text_release(&text);
    return 0;
}
